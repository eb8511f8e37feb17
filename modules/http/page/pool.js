/* --- Pool: where is room, and what happens to it? --- */

/* Of the map of a segment, from below in each column; class of the colour. */
const KINDS = [
  ['used', 'objects', 'a'],
  ['leased', 'objects that are being read', 'c'],
  ['written', 'being written', 'd'],
  ['quarantined', 'gone, but may still be read', 'b'],
];

/* A picture of n columns, which the page stretches. */
function mapStrip(s, name) {
  const parts = KINDS.map(([kind]) => s['map_' + kind] || '');
  const n = Math.max(...parts.map((p) => p.length)) / 2 || 1;
  return make('canvas', {
    class: 'map',
    width: n,
    height: 20,
    role: 'img',
    'aria-label': name,
    title: name,
    data: parts,
  });
}

/* After the page is up to date; again when the colours are others. */
function mapsPaint(view) {
  const style = getComputedStyle(document.documentElement);
  const colour = (of) => style.getPropertyValue('--' + of);
  const colours = [...KINDS.map(([, , of]) => colour(of)), colour('free')];
  const scheme = colours.join();
  for (const canvas of view.querySelectorAll('canvas.map')) {
    const painted = scheme + canvas.width + canvas.data.join(' ');
    if (canvas.painted === painted) continue;
    canvas.painted = painted;
    const pen = canvas.getContext('2d'),
      high = canvas.height;
    pen.fillStyle = colours[KINDS.length];
    pen.fillRect(0, 0, canvas.width, high);
    for (let at = 0; at < canvas.width; at++) {
      let bottom = high;
      canvas.data.forEach((hex, i) => {
        const part = hex ? (parseInt(hex.substr(2 * at, 2), 16) / 255) * high : 0;
        if (part === 0) return;
        pen.fillStyle = colours[i];
        const tall = Math.max(1, Math.round(part));
        pen.fillRect(at, bottom - tall, 1, tall);
        bottom -= tall;
      });
    }
  }
}

function segmentWords(s) {
  const words = [`${s.name}, ${s.tier}, ${s.state}: ${bytes(s.used)} of ${bytes(s.size)} used`];
  for (const [kind, what] of KINDS.slice(1))
    if (s['bytes_' + kind]) words.push(`${bytes(s['bytes_' + kind])} ${what}`);
  return words.join(', ');
}

const labelled = (label, drawn) =>
  make('span', { class: 'labelled' }, make('span', {}, label), drawn);

function segmentRow(s) {
  const words = segmentWords(s);
  const drawn =
    s.tier === 'memory'
      ? mapStrip(s, words)
      : labelled(s.tier, bar([[s.used, 'f']], s.size, words));
  const drains = known(s.drain_moved_bytes)
    ? labelled(
        'drain',
        bar([[s.drain_moved_bytes, 'c']], s.drain_moved_bytes + s.used, drainWords(s)),
      )
    : null;
  return make('span', { 'data-key': 's' + s.segment, class: 'segment' }, drawn, drains);
}

const drainWords = (s) =>
  `${bytes(s.drain_moved_bytes)} moved away, ${bytes(s.used)} left` +
  (s.drain_waiting ? `, ${some(s.drain_waiting, 'task')} under way` : '');

/* What is not as it should be, in words; [] : nothing. */
function nodeTroubles(node, segments) {
  const words = [];
  if (node && node.state !== 'up') words.push(`${node.state}, silent for ${lasting(node.silent)}`);
  if (node && node.draining)
    words.push(
      `draining: ${bytes(node.drain_moved)} moved away, ${bytes(node.drain_left)} left`,
    );
  if (node && node.maintenance) words.push('in maintenance: nothing new goes there');
  for (const s of segments)
    if (s.state !== 'up' && !(node && (node.state !== 'up' || node.draining || node.maintenance)))
      words.push(`${s.name} ${s.state}`);
  return words;
}

function nodeDetails(node, segments) {
  const rows = node
    ? ['address', 'machine', 'rack', 'version', 'joins', 'tasks']
        .filter((name) => node[name] !== '')
        .map((name) => [name, String(node[name])])
    : [];
  return make(
    'div',
    {},
    make(
      'dl',
      { class: 'facts' },
      rows.map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]),
    ),
    segments.map((s) =>
      make(
        'p',
        { class: 'note' },
        segmentWords(s),
        s.tier === 'memory' ? `. Largest free run ${bytes(s.largest_free)}` : '',
        s.backing ? `, ${s.backing}` : '',
        s.huge ? ', huge pages' : '',
        s.numa_node >= 0 ? `, NUMA node ${s.numa_node}` : '',
        s.directory ? `, ${s.directory}` : '',
      ),
    ),
  );
}

function nodeCard(key, name, node, segments, dense) {
  const troubles = nodeTroubles(node, segments);
  const memory = segments.filter((s) => s.tier === 'memory');
  const size = memory.reduce((sum, s) => sum + s.size, 0),
    used = memory.reduce((sum, s) => sum + s.used, 0);
  const down = node && node.state !== 'up';
  return make(
    'details',
    { class: 'node' + (down ? ' away' : troubles.length ? ' busy' : ''), 'data-key': key },
    make(
      'summary',
      {},
      make('span', { class: 'name' }, name),
      make('span', { class: 'right' }, size ? percent(share(used, size)) : '–'),
      troubles.length ? make('span', { class: 'trouble' }, troubles.join('; ')) : null,
      dense ? null : make('span', { class: 'note' }, `${bytes(used)} of ${bytes(size)}`),
      /* the details say it in words */
      make('span', { class: 'segments', 'aria-hidden': 'true' }, segments.map(segmentRow)),
    ),
    state.opened.has(key) ? nodeDetails(node, segments) : null,
  );
}

function nodeList() {
  const of = new Map();
  for (const s of state.segments || []) {
    if (!of.has(s.node)) of.set(s.node, []);
    of.get(s.node).push(s);
  }
  const all = (state.nodes || []).map((n) => [n.node, n]);
  all.sort(([a], [b]) => byName(a, b));
  if (of.has('')) all.unshift(['', undefined]);
  return all.map(([name, node]) => ({ name, node, segments: of.get(name) || [] }));
}

/* Who is away comes first, then who is busy. */
const troubleOf = ({ node, segments }) =>
  node && node.state !== 'up' ? 0 : nodeTroubles(node, segments).length ? 1 : 2;

function nodesSection() {
  const title = 'Segments, by node';
  const all = nodeList();
  if (all.length === 0)
    return section(
      title,
      { class: 'wide', 'data-key': title },
      empty(
        'This pool has no memory yet. Start a tarn-node (tarn-node --master tarn://HOST:PORT ' +
          '--segment 8gb), or this server with --pool-size.',
      ),
    );
  const oneIn = Math.max(...(state.segments || []).map((s) => s.map_one_in || 1));
  return section(
    title,
    { class: 'wide', 'data-key': title },
    cards(
      all,
      {
        find: 'name, rack, state',
        words: ({ name, node }) =>
          `${name} ${node ? [node.machine, node.rack, node.state].join(' ') : 'this server'}`,
        none: 'No node is called so.',
        worth: troubleOf,
        card: ({ name, node, segments }, dense) =>
          nodeCard('n' + name, name || 'this server', node, segments, dense),
      },
      make(
        'div',
        { class: 'legend' },
        KINDS.map(([, what, of]) => make('span', {}, swatch(of), what)),
        make('span', {}, swatch('f'), 'objects on disk'),
        make('span', {}, swatch('none'), 'free'),
      ),
    ),
    note(
      'A column is a part of the segment, filled as far as it is used. ' +
        (oneIn > 1 ? `Estimated from one block in ${oneIn}. ` : '') +
        (state.cut ? 'There are more than are shown: SEGMENT LIST has all.' : ''),
    ),
  );
}

function tiersSection() {
  const tiers = new Map();
  for (const s of state.segments || []) {
    const t = tiers.get(s.tier) || { n: 0, size: 0, used: 0, away: 0 };
    t.n++;
    t.size += s.size;
    t.used += s.used;
    if (s.state === 'down' || s.state === 'leaving') t.away += s.size;
    tiers.set(s.tier, t);
  }
  if (tiers.size === 0) return null;
  return section(
    'Tiers',
    { class: 'wide', 'data-key': 'tiers' },
    table(
      ['tier', right('segments'), right('size'), right('used'), 'fill', right('away')],
      [...tiers].map(([name, t]) => [
        name,
        name,
        right(count(t.n)),
        right(bytes(t.size)),
        right(`${bytes(t.used)}, ${percent(share(t.used, t.size))}`),
        bar([[t.used, name === 'memory' ? 'a' : 'f']], t.size, percent(share(t.used, t.size))),
        right(t.away ? bytes(t.away) : '–'),
      ]),
      '',
    ),
  );
}

function drainsSection() {
  const drains = (state.segments || []).filter((s) => known(s.drain_moved_bytes));
  if (drains.length === 0) return null;
  return section(
    'Drains',
    { class: 'wide', 'data-key': 'drains' },
    table(
      ['segment', 'node', 'progress', right('moved'), right('left'), ''],
      drains.map((s) => [
        s.segment,
        s.name,
        s.node || 'this server',
        bar([[s.drain_moved_bytes, 'c']], s.drain_moved_bytes + s.used, drainWords(s)),
        right(bytes(s.drain_moved_bytes)),
        right(s.state === 'drained' ? 'nothing' : bytes(s.used)),
        make('span', { class: 'wrap' }, s.drain_error),
      ]),
      '',
    ),
  );
}

const TASK_STATES = { room: 'looks for room', sent: 'under way' };

function tasksSection() {
  const all = state.tasks || [];
  const { tasks } = state.info;
  return section(
    'Tasks: copies and moves of objects',
    { class: 'wide', 'data-key': 'tasks' },
    table(
      ['task', 'for', 'key', right('bytes'), 'from', 'to', 'state', right('age'), 'trouble'],
      all.map((t) => [
        t.task,
        `${t.kind} ${t.task}`,
        t.reason,
        t.key,
        right(bytes(t.bytes)),
        t.from,
        t.to,
        (TASK_STATES[t.state] || t.state) + (t.tries > 1 ? `, try ${t.tries}` : ''),
        right(lasting(t.age)),
        make('span', { class: 'wrap' }, t.error),
      ]),
      'Nothing is copied or moved now, and nothing was of late.',
    ),
    all.length && all.length < tasks.tasks
      ? note(`${count(all.length)} of ${count(tasks.tasks)} are shown: REPLICA TASKS has all.`)
      : null,
  );
}

function poolView() {
  const { pool, nodes, tasks } = state.info;
  return [
    numbers(
      ['Size', bytes(pool.pool_size)],
      ['Used', `${bytes(pool.pool_used)}, ${percent(share(pool.pool_used, pool.pool_size))}`],
      ['Free', bytes(pool.pool_free)],
      ['In quarantine', bytes(pool.pool_quarantined)],
      ['Away', bytes(pool.pool_down)],
      ['Largest free run', bytes(pool.pool_largest_free)],
      ['Nodes up', nodes.nodes ? `${nodes.nodes_up} of ${nodes.nodes}` : 'only this server'],
      ['Tasks', count(tasks.tasks)],
    ),
    nodesSection(),
    drainsSection(),
    tiersSection(),
    over(
      'Fill',
      [
        ['used', 'pool_used'],
        ['size', 'pool_size'],
      ],
      bytes,
    ),
    nodes.nodes ? over('Nodes that are up', [['up', 'nodes_up']], count) : null,
    tasksSection(),
  ];
}
