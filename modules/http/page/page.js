'use strict';
/* What a server of tarn knows of itself, from /api/info and /api/history. Everything that comes
 * from there is put into the page as text, never as markup. */

const byId = (id) => document.getElementById(id);
const NS = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (value !== undefined && value !== false) element.setAttribute(name, value);
  element.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return element;
}
const make = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS(NS, tag), attributes, children);

/* --- numbers --- */

function short(value, units, step) {
  let i = 0;
  while (Math.abs(value) >= step && i < units.length - 1) {
    value /= step;
    i++;
  }
  const digits = i === 0 && Number.isInteger(value) ? 0 : Math.abs(value) < 10 ? 2 : 1;
  return value.toFixed(digits) + units[i];
}
const known = (value) => value !== null && value !== undefined;
const count = (v) => (known(v) ? short(v, ['', ' k', ' M', ' G'], 1000) : '–');
const bytes = (v) =>
  known(v) ? short(v, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB'], 1024) : '–';
const rate = (v) => (known(v) ? bytes(v) + '/s' : '–');
const each = (v) => (known(v) ? count(v) + '/s' : '–');
const percent = (v) => (known(v) ? (100 * v).toFixed(1) + ' %' : '–');
const millis = (v) => (known(v) ? (v < 1 ? v.toFixed(3) : v.toFixed(1)) + ' ms' : '–');
function lasting(ms) {
  if (!known(ms)) return '–';
  if (ms < 1000) return 'under 1 s';
  if (ms < 120000) return (ms / 1000).toFixed(0) + ' s';
  if (ms < 7200000) return (ms / 60000).toFixed(0) + ' min';
  return (ms / 3600000).toFixed(0) + ' h';
}
const share = (part, whole) => (whole > 0 ? part / whole : 0);

/* --- charts --- */

const WIDE = 420,
  HIGH = 150,
  LEFT = 68,
  RIGHT = 8,
  TOP = 8,
  BOTTOM = 20;
const COLOURS = ['a', 'b', 'c', 'd', 'e', 'f'];

function niceTop(values, form) {
  const most = Math.max(0, ...values.filter(known));
  if (most === 0) return 1;
  if (form === bytes || form === rate) return 2 ** Math.ceil(Math.log2(most));
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= most);
}

/* lines: [name, values]; x: index to place; label: index to text. */
function plot(title, lines, form, x, label, top, dots) {
  const y = (v) => HIGH - BOTTOM - ((HIGH - TOP - BOTTOM) * v) / top;
  const svg = draw('svg', { viewBox: `0 0 ${WIDE} ${HIGH}`, role: 'img', 'aria-label': title });
  for (const part of [0, 0.5, 1]) {
    svg.append(
      draw('line', {
        class: 'grid',
        x1: LEFT,
        x2: WIDE - RIGHT,
        y1: y(part * top),
        y2: y(part * top),
      }),
      draw('text', { x: LEFT - 6, y: y(part * top) + 4, 'text-anchor': 'end' }, form(part * top)),
    );
  }
  const n = lines[0][1].length;
  lines.forEach(([, values], i) => {
    let path = '',
      pen = 'M';
    values.forEach((v, at) => {
      if (!known(v)) {
        pen = 'M';
        return;
      }
      path += pen + x(at).toFixed(1) + ' ' + y(Math.min(v, top)).toFixed(1);
      pen = 'L';
      if (dots)
        svg.append(draw('circle', { class: 'dot ' + COLOURS[i], cx: x(at), cy: y(v), r: 3 }));
    });
    svg.append(draw('path', { class: 'line ' + COLOURS[i], d: path }));
  });
  for (const at of dots ? [...Array(n).keys()] : [0, n - 1])
    svg.append(
      draw(
        'text',
        { x: x(at), y: HIGH - 5, 'text-anchor': dots ? 'middle' : at === 0 ? 'start' : 'end' },
        label(at),
      ),
    );
  return svg;
}

/* One that tells its values where the pointer is, and the last ones otherwise. */
function chart(title, lines, form, x, label, top, dots, note) {
  const n = lines[0][1].length;
  const svg = plot(title, lines, form, x, label, top, dots);
  const cross = draw('line', { class: 'cross', y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  const values = lines.map(() => make('b'));
  const when = make('span');
  const tell = (at) => {
    lines.forEach(([, all], i) => {
      values[i].textContent = form(all[at]);
    });
    when.textContent = at === n - 1 && !dots ? '' : label(at);
  };
  tell(n - 1);
  svg.append(cross);
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const to = ((event.clientX - box.left) * WIDE) / box.width;
    let best = 0;
    for (let i = 1; i < n; i++) if (Math.abs(x(i) - to) < Math.abs(x(best) - to)) best = i;
    cross.setAttribute('x1', x(best));
    cross.setAttribute('x2', x(best));
    tell(best);
  });
  svg.addEventListener('pointerleave', () => {
    cross.setAttribute('x1', -9);
    cross.setAttribute('x2', -9);
    tell(n - 1);
  });
  const legend = lines.map(([name], i) =>
    make('span', {}, make('span', { class: 'swatch ' + COLOURS[i] }), name + ' ', values[i]),
  );
  return make(
    'section',
    {},
    make('h2', {}, title),
    svg,
    make('div', { class: 'legend' }, ...legend, when),
    note ? make('p', { class: 'note' }, note) : null,
  );
}

function over(title, names, form, top, note) {
  const series = state.history.series,
    step = state.history.step_ms;
  const lines = names.map(([name, of]) => [name, series[of] || []]);
  const n = lines[0][1].length;
  if (n === 0 || !lines.some(([, v]) => v.some(known)))
    return make(
      'section',
      {},
      make('h2', {}, title),
      make('p', { class: 'empty' }, 'Nothing was measured yet.'),
    );
  const x = (i) => LEFT + (WIDE - LEFT - RIGHT) * (n > 1 ? i / (n - 1) : 1);
  const label = (i) => (i === n - 1 ? 'now' : '−' + lasting((n - 1 - i) * step));
  return chart(
    title,
    lines,
    form,
    x,
    label,
    top ||
      niceTop(
        lines.flatMap(([, v]) => v),
        form,
      ),
    false,
    note,
  );
}

function bar(parts, whole, name) {
  return make(
    'div',
    { class: 'bar', role: 'img', 'aria-label': name },
    ...parts.map(([value, of]) => {
      const piece = make('i', { class: of });
      piece.style.width = 100 * share(value, whole) + '%';
      return piece;
    }),
  );
}

function table(heads, rows, empty) {
  if (rows.length === 0) return make('p', { class: 'empty' }, empty);
  const cell = (tag, v) =>
    make(
      tag,
      { class: v && v.right ? 'right' : undefined },
      v && v.right !== undefined ? v.right : v,
    );
  return make(
    'div',
    { class: 'scroll' },
    make(
      'table',
      {},
      make('thead', {}, make('tr', {}, ...heads.map((h) => cell('th', h)))),
      make('tbody', {}, ...rows.map((r) => make('tr', {}, ...r.map((v) => cell('td', v))))),
    ),
  );
}
const right = (text) => ({ right: text });

/* --- what an operator would be told --- */

function recent(name) {
  const values = (state.history.series[name] || []).slice(-60).filter(known);
  return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null;
}

function alarms(info) {
  const { pool, cache, nodes, eviction, replication } = info;
  const told = [];
  const tell = (when, text) => {
    if (when) told.push(text);
  };
  const away = (nodes.node || []).filter((n) => n.state === 'down').map((n) => n.node);
  tell(
    nodes.nodes_down > 0,
    `${nodes.nodes_down} of ${nodes.nodes} nodes are away` +
      (away.length ? ` (${away.slice(0, 5).join(', ')}${away.length > 5 ? ', …' : ''})` : '') +
      ': what only they have cannot be read until they are back.',
  );
  tell(
    nodes.nodes_down === 0 && pool.pool_down > 0,
    `${bytes(pool.pool_down)} of the pool are in segments that are away or leaving.`,
  );
  tell(
    recent('failed_puts') > 0,
    'Puts fail: no room could be made, or writers were too slow. ' +
      'Look at leases, hard pins and eviction-policy (CACHE DOCTOR).',
  );
  tell(
    cache.replicas_bad > 0,
    `${cache.replicas_bad} replicas had wrong bytes and were dropped: ` +
      'look at the memory and disks of their nodes (REPLICA REPORT).',
  );
  const hits = recent('hits'),
    misses = recent('misses');
  tell(
    hits + misses > 1 && share(hits, hits + misses) < 0.5,
    'Fewer than half of the look-ups hit in the last ' +
      `${state.over === 'second' ? 'minute' : 'hour'}: the view Cache says why.`,
  );
  tell(
    recent('get_p99_ms') > 10,
    `One get in a hundred takes ${millis(recent('get_p99_ms'))} or more.`,
  );
  tell(
    recent('evictions') > 0 &&
      known(eviction.evicted_idle_p50) &&
      eviction.evicted_idle_p50 < 60000,
    'Half of what is evicted was used less than ' +
      `${lasting(Math.max(1000, eviction.evicted_idle_p50))} before: the pool is small for what ` +
      'is asked of it.',
  );
  tell(replication.master_link_status === 'down', 'The link to the master is down.');
  tell(info.persistence.loading === 1, 'The books are being loaded.');
  return told;
}

/* --- views --- */

function numbers(...pairs) {
  return make(
    'section',
    { class: 'wide' },
    make(
      'dl',
      { class: 'numbers' },
      ...pairs.map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))),
    ),
  );
}

function overview(info) {
  const { pool, cache, nodes } = info;
  const told = alarms(info);
  return [
    make(
      'section',
      { class: told.length ? 'wide alarm' : 'wide' },
      told.length
        ? make('ul', {}, ...told.map((text) => make('li', {}, text)))
        : 'Nothing to worry about.',
    ),
    numbers(
      ['Hit ratio', cache.hits + cache.misses ? percent(cache.hit_ratio) : '–'],
      ['Objects', count(cache.objects)],
      ['Pool used', bytes(pool.pool_used) + ' of ' + bytes(pool.pool_size)],
      ['Nodes', nodes.nodes ? `${nodes.nodes_up} of ${nodes.nodes}` : 'this server'],
      ['Clients', count(info.clients.connected_clients)],
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
  ];
}

const REASONS = [
  ['never', 'never seen, as far as is remembered: new prompts, or other names'],
  ['evicted', 'had been there; a larger pool would turn these into hits'],
  ['expired', 'their time to live was over'],
  ['removed', 'somebody removed them'],
  ['away', 'on a node or segment that is away'],
  ['gap', 'behind the first miss of a prefix: not looked at, and not counted as misses'],
];
const CAUSES = [
  ['put', 'room for another object'],
  ['watermark', 'in the background, above the high watermark'],
  ['quota', "a tenant's quota was full"],
  ['maxmemory', 'maxmemory or max-objects'],
  ['command', 'the command EVICT'],
];

function split(title, of, table_, prefix, note) {
  const whole = table_.reduce((sum, [name]) => sum + (of[prefix + name] || 0), 0);
  return make(
    'section',
    {},
    make('h2', {}, title),
    bar(
      table_.map(([name], i) => [of[prefix + name] || 0, COLOURS[i]]),
      whole,
      title,
    ),
    table(
      ['why', right('since the start'), right('share')],
      table_.map(([name, text], i) => [
        make(
          'div',
          {},
          make('span', { class: 'swatch ' + COLOURS[i] }),
          name,
          make('p', { class: 'note' }, text),
        ),
        right(count(of[prefix + name] || 0)),
        right(percent(share(of[prefix + name] || 0, whole))),
      ]),
      '',
    ),
    make('p', { class: 'note' }, note),
  );
}

function curve(cache, policy) {
  const sizes = ['quarter', 'half', 'this', 'twice', 'four_times'],
    labels = ['¼', '½', '1×', '2×', '4×'];
  const title = 'Hit ratio, were the pool as large';
  if (!known(cache.curve_this))
    return make(
      'section',
      {},
      make('h2', {}, title),
      make('p', { class: 'empty' }, 'Nothing was looked up in the last minutes.'),
    );
  const lines = [['with ' + policy, sizes.map((s) => cache['curve_' + s])]];
  if (policy !== 'lru') lines.push(['with lru', sizes.map((s) => cache['curve_lru_' + s])]);
  const x = (i) => LEFT + 20 + ((WIDE - LEFT - RIGHT - 40) * i) / (sizes.length - 1);
  return chart(
    title,
    lines,
    percent,
    x,
    (i) => labels[i],
    1,
    true,
    `From one key in ${cache.curve_one_in}, of the last minutes; CACHE CURVE tells the error.`,
  );
}

function cacheView(info) {
  const { cache, eviction } = info;
  return [
    numbers(
      ['Hits', count(cache.hits)],
      ['Misses', count(cache.misses)],
      ['Hit ratio', cache.hits + cache.misses ? percent(cache.hit_ratio) : '–'],
      ['Evicted', count(eviction.evicted_objects)],
      [
        'Unused before eviction, median',
        eviction.evicted_objects ? lasting(eviction.evicted_idle_p50) : '–',
      ],
      [
        'Asked again after eviction, median',
        cache.misses_evicted ? lasting(cache.asked_again_p50) : '–',
      ],
    ),
    split(
      'Why look-ups missed',
      cache,
      REASONS,
      'misses_',
      cache.misses_one_in > 1
        ? `From one key in ${cache.misses_one_in}.`
        : 'All keys are followed.',
    ),
    split(
      'What evictions were for',
      eviction,
      CAUSES,
      'evictions_',
      'Policy: ' + eviction.eviction_policy,
    ),
    curve(cache, eviction.eviction_policy),
    over(
      'Misses by reason',
      REASONS.map(([name]) => [name, 'misses_' + name]),
      each,
    ),
    over(
      'Evictions',
      CAUSES.map(([name]) => [name, 'evictions_' + name]),
      each,
    ),
    over(
      'Puts',
      [
        ['done', 'puts'],
        ['failed', 'failed_puts'],
      ],
      each,
    ),
  ];
}

function segmentBar(s) {
  const text =
    `${s.name}, ${s.tier}: ${bytes(s.used)} of ${bytes(s.size)} used, ` +
    `${bytes(s.quarantined)} in quarantine`;
  return make(
    'div',
    { title: text },
    bar(
      [
        [s.used, s.tier === 'memory' ? 'a' : 'f'],
        [s.quarantined, 'b'],
      ],
      s.size,
      text,
    ),
  );
}

function nodeCard(name, node, segments) {
  const away = node && node.state !== 'up';
  const size = segments.reduce((sum, s) => sum + s.size, 0);
  const used = segments.reduce((sum, s) => sum + s.used, 0);
  const words = [];
  if (node) {
    if (away) words.push(node.state + ', silent for ' + lasting(node.silent));
    if (node.draining) words.push('draining');
    if (node.maintenance) words.push('in maintenance');
    if (node.tasks) words.push(count(node.tasks) + ' tasks');
    if (node.rack) words.push('rack ' + node.rack);
  }
  return make(
    'div',
    { class: away ? 'node away' : 'node' },
    make('h3', {}, name),
    make('p', {}, `${bytes(used)} of ${bytes(size)}`, words.length ? ' · ' + words.join(', ') : ''),
    ...segments.map(segmentBar),
  );
}

function poolView(info) {
  const { pool, nodes, tasks } = info;
  const of = new Map();
  for (const s of pool.segment || []) {
    const name = s.node || '';
    if (!of.has(name)) of.set(name, []);
    of.get(name).push(s);
  }
  const all = (nodes.node || []).map((n) => [n.node, n]);
  if (of.has('')) all.unshift(['this server', undefined]);
  all.sort(([, a], [, b]) => (b && b.state !== 'up') - (a && a.state !== 'up'));
  return [
    numbers(
      ['Size', bytes(pool.pool_size)],
      ['Used', bytes(pool.pool_used)],
      ['Free', bytes(pool.pool_free)],
      ['In quarantine', bytes(pool.pool_quarantined)],
      ['Away', bytes(pool.pool_down)],
      ['Largest free run', bytes(pool.pool_largest_free)],
      ['Tasks', count(tasks.tasks)],
      ['Drains', count(tasks.drains)],
    ),
    make(
      'section',
      { class: 'wide' },
      make('h2', {}, 'Segments, by node'),
      make(
        'div',
        { class: 'legend' },
        ...[
          ['used, memory', 'a'],
          ['used, disk', 'f'],
          ['quarantine', 'b'],
          ['free', 'none'],
        ].map(([text, c]) => make('span', {}, make('span', { class: 'swatch ' + c }), text)),
      ),
      all.length
        ? make(
            'div',
            { class: 'nodes' },
            ...all.map(([name, node]) => nodeCard(name, node, of.get(node ? name : '') || [])),
          )
        : make(
            'p',
            { class: 'empty' },
            'This pool has no memory yet: start a tarn-node, or this ' + 'server with --pool-size.',
          ),
    ),
    over(
      'Fill',
      [
        ['used', 'pool_used'],
        ['size', 'pool_size'],
      ],
      bytes,
    ),
    over('Nodes that are up', [['up', 'nodes_up']], count),
  ];
}

function tenantsView(info) {
  const rows = (info.cache.tenant || []).map((t) => {
    const missed = REASONS.slice(0, 5).reduce((sum, [name]) => sum + (t['misses_' + name] || 0), 0);
    return [
      t.tenant || 'keys without a quota',
      right(bytes(t.used)),
      right(t.quota ? bytes(t.quota) : 'none'),
      right(t.quota ? percent(share(t.used, t.quota)) : ''),
      right(count(t.objects)),
      right(count(t.hits)),
      right(count(missed)),
      right(t.hits + missed ? percent(share(t.hits, t.hits + missed)) : '–'),
      right(count(t.misses_evicted)),
      right(count(t.evicted)),
    ];
  });
  return [
    make(
      'section',
      { class: 'wide' },
      make('h2', {}, 'Tenants: key prefixes with a quota'),
      table(
        [
          'prefix',
          right('used'),
          right('quota'),
          right('of it'),
          right('objects'),
          right('hits'),
          right('misses'),
          right('hit ratio'),
          right('missed what was evicted'),
          right('evicted'),
        ],
        rows,
        'There is no quota: QUOTA SET prefix bytes makes one, and a row here.',
      ),
    ),
  ];
}

const VIEWS = { Overview: overview, Cache: cacheView, Pool: poolView, Tenants: tenantsView };

/* --- asking --- */

const state = { view: 'Overview', over: 'second', info: null, history: null, pointed: false };

async function ask(path) {
  const token = sessionStorage.getItem('token');
  const reply = await fetch(path, token ? { headers: { Authorization: 'Bearer ' + token } } : {});
  byId('ask').hidden = reply.status !== 401;
  if (reply.status === 401) throw new Error(token ? 'That was not the token.' : '');
  if (!reply.ok) throw new Error(`${path}: HTTP ${reply.status}`);
  return reply.json();
}

function show() {
  if (!state.info || !state.history) return;
  const { server, replication } = state.info;
  byId('who').textContent =
    `${server.tarn_version}, ${replication.role === 'master' ? 'master' : 'replica'}, ` +
    `port ${server.tcp_port}, up ${lasting(server.uptime_in_seconds * 1000)}`;
  byId('view').replaceChildren(...VIEWS[state.view](state.info));
}

async function refresh() {
  try {
    state.info = await ask('api/info');
    state.history = await ask('api/history?over=' + state.over);
    byId('trouble').hidden = true;
    if (!state.pointed) show(); /* a chart that is being read stays */
  } catch (error) {
    byId('trouble').hidden = error.message === '';
    byId('trouble').textContent =
      error instanceof TypeError
        ? 'The server does not answer; what is shown is old.'
        : error.message;
  }
}

async function watch() {
  if (!document.hidden) await refresh();
  setTimeout(watch, 2000);
}

function choose(view) {
  state.view = Object.hasOwn(VIEWS, view) ? view : 'Overview';
  for (const button of byId('views').children) {
    if (button.textContent === state.view) button.setAttribute('aria-current', 'page');
    else button.removeAttribute('aria-current');
  }
  show();
}

for (const name of Object.keys(VIEWS)) {
  const button = make('button', { type: 'button' }, name);
  button.addEventListener('click', () => {
    location.hash = name;
  });
  byId('views').append(button);
}
window.addEventListener('hashchange', () => choose(location.hash.slice(1)));
byId('view').addEventListener('pointerover', (event) => {
  state.pointed = !!event.target.closest('svg');
});
byId('view').addEventListener('pointerleave', () => {
  state.pointed = false;
});
byId('over').addEventListener('change', (event) => {
  state.over = event.target.value;
  refresh();
});
byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('token', byId('token').value);
  byId('token').value = '';
  refresh();
});
choose(location.hash.slice(1));
watch();
