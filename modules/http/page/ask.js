/* --- asking, and what is shown --- */

const state = {
  view: 'Overview',
  over: 'second',
  version: {},
  info: null,
  history: null,
  events: [],
  event: 0, /* the last one */
  opened: new Set(), /* keys of details that are open */
  candidates: new Map(), /* of decisions of the Conductor */
  filter: '',
  kind: '',
  warnings: false,
  sort: { column: 0, down: false },
};

/* What each view wants to know besides /api/info; every so many rounds. */
const LISTS = {
  Overview: [['alarms', 1]],
  Cache: [
    ['doctor', 3],
    ['prefixes', 3],
  ],
  Pool: [
    ['nodes', 1],
    ['segments', 2],
    ['tasks', 1],
  ],
  Conductor: [
    ['conductor/engines', 1],
    ['conductor/decisions', 1],
    ['conductor/prefixes', 3],
  ],
  Tenants: [],
  Clients: [['clients', 1]],
  Events: [],
};
const VIEWS = {
  Overview: overview,
  Cache: cacheView,
  Pool: poolView,
  Conductor: conductorView,
  Tenants: tenantsView,
  Clients: clientsView,
  Events: eventsView,
};
const ROUND_MS = 2000;
const POINTS = { second: 300, minute: 1440 }; /* of the history */
const ROWS = { clients: 500, tasks: 20, 'conductor/decisions': 30 }; /* shown at most */

async function ask(path) {
  const token = sessionStorage.getItem('token');
  const reply = await fetch(path, token ? { headers: { Authorization: 'Bearer ' + token } } : {});
  byId('ask').hidden = reply.status !== 401;
  if (reply.status === 401) throw new Error(token ? 'That was not the token.' : '');
  if (reply.status === 404 && path.split('/').length > 2) return null;
  if (!reply.ok) throw new Error(`${path}: HTTP ${reply.status}`);
  return reply.json();
}

/* All pages of a list, or as many rows as are shown. Modules, "NAME/LIST", need not have what they
 * are asked for. */
async function askList(name) {
  const rows = [],
    most = ROWS[name] || 5000;
  for (let from = 0; ; ) {
    const page = await ask(`api/${name}?from=${from}&count=${Math.min(most - rows.length, 1000)}`);
    if (!page) return Object.assign(rows, { missing: true });
    rows.push(...page[name.split('/')[1] || name]);
    from = page.next;
    if (!page.more || rows.length >= most) {
      if (name === 'segments') state.cut = page.more;
      return rows.slice(0, most);
    }
  }
}

async function askEvents() {
  const page = await ask('api/events?from=' + state.event);
  if (page.events.length && Number(page.events[0].event) <= state.event) state.events = [];
  state.event = page.next;
  for (const e of page.events) {
    /* said again: one line, with a new number */
    const last = state.events.at(-1);
    if (last && last.text === e.text && e.times > last.times) state.events.pop();
    state.events.push(e);
  }
  state.events = state.events.slice(-256);
}

/* Only what is new, with some of what is known: the last minute is not over. Points have numbers,
 * the last of which is told. */
async function askHistory() {
  const old = state.history,
    wanted = state.over, /* another may be chosen before the answer comes */
    path = 'api/history?over=' + wanted;
  const again = old && old.over === wanted,
    since = again ? Math.max(0, old.end_ms - 2 * old.step_ms) : 0; /* 0: all */
  const page = await ask(since ? `${path}&since=${since}` : path);
  const first = page.last - page.series.hits.length + 1;
  if (again && (first > old.last + 1 || page.last < old.last)) {
    state.history = null; /* it slept, or is another server */
    await askHistory();
    return;
  }
  for (const [name, points] of Object.entries(again ? page.series : {})) {
    const before = (old.series[name] || []).slice(0, first - 1 - old.last || undefined);
    page.series[name] = before.concat(points).slice(-POINTS[wanted]);
  }
  state.history = { ...page, over: wanted };
}

let round = 0;
async function askAll() {
  const all = [ask('api/info').then((v) => (state.info = v))];
  all.push(askHistory());
  all.push(askEvents());
  await Promise.all(all);
  if (!keepsBooks()) return;
  const lists = listsOf(state.view).filter(
    ([name, every]) => !state[name] || (!state[name].missing && round % every === 0),
  );
  const keep = { 'conductor/decisions': keepDecisions };
  await Promise.all(
    lists.map(([name]) =>
      askList(name).then((rows) => (state[name] = keep[name] ? keep[name](rows) : rows)),
    ),
  );
  round++;
}

const listsOf = (view) => (view === 'Conductor' && !conducts() ? [] : LISTS[view]);
const keepsBooks = () => state.info.pool && state.info.cache && state.info.nodes;

function show() {
  if (!state.info || !state.history) return;
  const { server, replication } = state.info;
  const books = keepsBooks();
  if (books && listsOf(state.view).some(([name]) => !state[name])) return;
  byId('views').hidden = !books;
  byId('views').querySelector('[href="#Conductor"]').hidden = !books || !conducts();
  byId('who').textContent = [
    state.version.version,
    books ? (replication.role === 'master' ? 'master' : 'replica') : state.version.program,
    server && server.tcp_port && `port ${server.tcp_port}`,
    server && server.uptime_in_seconds && `up ${lasting(server.uptime_in_seconds * 1000)}`,
  ]
    .filter(Boolean)
    .join(', ');
  const view = byId('view');
  morphChildren(view, (books ? VIEWS[state.view]() : plainView()).filter((part) => part));
  mapsPaint(view);
  for (const svg of view.querySelectorAll('svg'))
    if (known(svg.at)) chartTell(svg, Math.min(svg.at, svg.data.n - 1));
  const told = books && state.alarms ? alarmTexts().length : 0;
  document.title = `${told ? `(${told}) ` : ''}tarn${books ? `: ${state.view}` : ''}`;
}

async function refresh() {
  try {
    if (!state.version.version) state.version = await ask('version');
    await askAll();
    byId('trouble').hidden = true;
    show();
  } catch (error) {
    byId('trouble').hidden = error.message === '';
    byId('trouble').textContent =
      error instanceof TypeError
        ? 'The server does not answer; what is shown is old.'
        : error.message;
  }
}

/* One after another, however often it is asked for. */
let running = null;
function refreshSoon() {
  running = (running || Promise.resolve()).then(refresh);
  return running;
}

async function watch() {
  if (!document.hidden) await refreshSoon();
  setTimeout(watch, ROUND_MS);
}

function choose(view) {
  const changed = state.view !== view;
  state.view = Object.hasOwn(VIEWS, view) ? view : 'Overview';
  if (changed) state.filter = '';
  for (const link of byId('views').children) {
    if (link.textContent === state.view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  show();
  if (changed) refreshSoon();
}

byId('views').append(...Object.keys(VIEWS).map((name) => make('a', { href: '#' + name }, name)));
window.addEventListener('hashchange', () => choose(location.hash.slice(1)));
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () =>
  mapsPaint(byId('view')),
);
chartsListen(byId('view'));
byId('view').addEventListener('toggle', (event) => {
  const key = keyOf(event.target);
  if (event.target.open) state.opened.add(key);
  else state.opened.delete(key);
  show();
  if (event.target.open && key.startsWith('decision')) askCandidates(key.slice('decision'.length));
}, true);
byId('view').addEventListener('input', (event) => {
  if (event.target.id === 'filter') state.filter = event.target.value;
  else if (event.target.id === 'kind') state.kind = event.target.value;
  else if (event.target.id === 'warnings') state.warnings = event.target.checked;
  show();
});
byId('view').addEventListener('click', (event) => {
  const button = event.target.closest('button.sort');
  if (!button) return;
  const column = Number(button.dataset.column);
  /* numbers: the largest first */
  state.sort = { column, down: state.sort.column === column ? !state.sort.down : column > 3 };
  show();
});
byId('over').addEventListener('change', (event) => {
  state.over = event.target.value;
  refreshSoon();
});
byId('ask').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('token', byId('token').value);
  byId('token').value = '';
  refreshSoon();
});
choose(location.hash.slice(1));
watch();
