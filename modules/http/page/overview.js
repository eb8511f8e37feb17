/* --- Overview: is it well? --- */

/* Of the last minute, whatever the steps are. */
function recent(name) {
  const { series, step_ms } = state.history;
  const values = (series[name] || []).slice(-60000 / step_ms).filter(known);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

/* What the server says, and what only the history knows. */
function alarmTexts() {
  const told = (state.alarms || []).map((a) => [a.alarm, a.text, a.since]);
  const slow = recent('get_p99_ms');
  if (slow > 10)
    told.push(['slow', `One get in a hundred takes ${millis(slow)} or more. LATENCY DOCTOR.`]);
  return told;
}

function alarmsSection() {
  const told = alarmTexts();
  if (told.length === 0)
    return section(
      null,
      { class: 'wide well', 'data-key': 'alarms', role: 'status' },
      make('strong', {}, '✓ All is well.'),
      ' Nothing has to be done.',
    );
  return section(
    some(told.length, 'alarm'),
    { class: 'wide alarm', 'data-key': 'alarms', role: 'status' },
    make(
      'ul',
      {},
      told.map(([key, text, since]) =>
        make(
          'li',
          { 'data-key': key },
          text,
          since >= 1000 ? make('span', { class: 'note' }, ` For ${lasting(since)}.`) : null,
        ),
      ),
    ),
  );
}

function overview() {
  const { pool, cache, nodes, clients } = state.info;
  return [
    alarmsSection(),
    numbers(
      ['Hit ratio, since the start', cache.hits + cache.misses ? percent(cache.hit_ratio) : '–'],
      ['Objects', count(cache.objects)],
      [
        'Pool used',
        `${bytes(pool.pool_used)} of ${bytes(pool.pool_size)}` +
          (pool.pool_size ? `, ${percent(share(pool.pool_used, pool.pool_size))}` : ''),
      ],
      ['Nodes up', nodes.nodes ? `${nodes.nodes_up} of ${nodes.nodes}` : 'only this server'],
      ['Clients', count(clients.connected_clients)],
    ),
    over('Hit ratio', [['hits of look-ups', 'hit_ratio']], percent, 1),
    over(
      'Look-ups',
      [
        ['hit', 'hits'],
        ['missed', 'misses'],
      ],
      each,
    ),
    over(
      'Bytes',
      [
        ['read', 'bytes_out'],
        ['written', 'bytes_in'],
      ],
      rate,
      null,
      'Through sockets of this server. What clients copy out of shared memory or ask nodes for ' +
        'passes by it: their figures and the pages of nodes have that.',
    ),
    over(
      'Latency of commands that read',
      [
        ['median', 'get_p50_ms'],
        ['99 %', 'get_p99_ms'],
      ],
      millis,
    ),
    over(
      'Latency of commands that write',
      [
        ['median', 'put_p50_ms'],
        ['99 %', 'put_p99_ms'],
      ],
      millis,
    ),
    over(
      'Pool',
      [
        ['used', 'pool_used'],
        ['size', 'pool_size'],
      ],
      bytes,
    ),
    section(
      'Last events',
      { class: 'wide', 'data-key': 'events' },
      eventsTable(state.events.slice(-6)),
    ),
  ];
}

/* --- a program without books --- */

/* By their names, as no unit comes along. */
const ofBytes = (name) =>
  /(^|_)(bytes|memory|used|resident|active)(_|$)/.test(name) && !/cpu/.test(name);
const plainValue = (name, value) =>
  typeof value === 'number' && ofBytes(name) ? bytes(value) : String(value);

function plainSection([name, fields]) {
  const rows = Object.entries(fields).filter(([, v]) => typeof v !== 'object');
  if (rows.length === 0) return null;
  return section(
    name,
    { class: 'short', 'data-key': name },
    table(
      ['figure', right('value')],
      rows.map(([key, v]) => [
        key,
        make('span', { class: 'wrap' }, key.replaceAll('_', ' ')),
        right(plainValue(key, v)),
      ]),
      '',
    ),
  );
}

function plainView() {
  const program = state.version.program || 'a program';
  return [
    section(
      null,
      { class: 'wide', 'data-key': 'plain' },
      make('strong', {}, `This is ${program}, which keeps no books. `),
      'What is in the pool, and how it is, tells the page of its master ' +
        '(tarn-server --loadmodule http.so). Here are its own figures and events.',
    ),
    section(
      'Last events',
      { class: 'wide', 'data-key': 'events' },
      eventsTable(state.events.slice(-12)),
    ),
    ...Object.entries(state.info).map(plainSection),
  ];
}
