/* --- Tenants, Clients, Events --- */

function tenantsView() {
  const rows = (state.info.cache.tenant || []).map((t) => {
    const missed = REASONS.slice(0, 5).reduce((sum, [name]) => sum + (t['misses_' + name] || 0), 0);
    return [
      't' + t.tenant,
      t.tenant || 'keys without a quota',
      right(bytes(t.used)),
      right(t.quota ? bytes(t.quota) : 'none'),
      t.quota
        ? bar([[t.used, 'a']], t.quota, `${percent(share(t.used, t.quota))} of the quota`)
        : '',
      right(count(t.objects)),
      right(count(t.hits)),
      right(count(missed)),
      right(t.hits + missed ? percent(share(t.hits, t.hits + missed)) : '–'),
      right(count(t.misses_evicted)),
      right(count(t.evicted)),
    ];
  });
  return [
    section(
      'Tenants: key prefixes with a quota',
      { class: 'wide' },
      table(
        [
          'prefix',
          right('used'),
          right('quota'),
          'of it',
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

/* --- clients --- */

/* title, value to sort by, text; numbers stand on the right. */
const CLIENT_COLUMNS = [
  ['who', (c) => c.name || c.host || c.user, (c) => clientName(c)],
  ['from', (c) => c.addr, (c) => c.addr],
  ['library', (c) => c.library, (c) => `${c.library} ${c.library_version}`.trim() || '–'],
  ['last command', (c) => c.last_command, (c) => c.last_command.toUpperCase().replace('|', ' ')],
  ['commands', (c) => c.commands, (c) => count(c.commands)],
  ['sent', (c) => c.bytes_in, (c) => bytes(c.bytes_in)],
  ['received', (c) => c.bytes_out, (c) => bytes(c.bytes_out)],
  ['leases', (c) => c.leases, (c) => unlessNone(count, c.leases)],
  ['unread', (c) => c.unread, (c) => unlessNone(bytes, c.unread)],
  ['unsent', (c) => c.unsent, (c) => unlessNone(bytes, c.unsent)],
  ['memory', (c) => c.memory, (c) => bytes(c.memory)],
  ['idle', (c) => c.idle, (c) => lasting(1000 * c.idle)],
  ['age', (c) => c.age, (c) => lasting(1000 * c.age)],
];

function clientName(c) {
  const words = [];
  if (c.kind !== 'client') words.push(c.kind);
  if (c.user !== 'default') words.push('user ' + c.user);
  if (c.tls) words.push('TLS');
  if (c.waits) words.push('waits');
  return make(
    'div',
    {},
    c.name || c.host || `client ${c.client}`,
    words.length ? note(words.join(', ')) : null,
  );
}

function clientsView() {
  const all = state.clients || [];
  const { column, down } = state.sort;
  const value = CLIENT_COLUMNS[column][1];
  const order = (a, b) =>
    typeof value(a) === 'number' ? value(a) - value(b) : byName(value(a), value(b));
  const rows = [...all].sort((a, b) => (down ? order(b, a) : order(a, b)));
  const heads = CLIENT_COLUMNS.map(([title], i) => {
    const button = make(
      'button',
      { type: 'button', class: 'sort', 'data-column': i },
      title,
      i === column ? (down ? ' ▾' : ' ▴') : '',
    );
    const head = i > 3 ? right(button) : { right: undefined, text: button };
    return i > 3 ? head : button;
  });
  const known_ = state.info.clients.connected_clients;
  return [
    section(
      `Clients: ${count(known_)}`,
      { class: 'wide', 'data-key': 'clients' },
      table(
        heads,
        rows.map((c) => [
          'c' + c.client,
          ...CLIENT_COLUMNS.map(([, , text], i) => (i > 3 ? right(text(c)) : text(c))),
        ]),
        'Nobody is connected. An engine connects with libtarn or any client of Redis: ' +
          `port ${state.info.server.tcp_port}.`,
      ),
      all.length < known_
        ? note(`${count(all.length)} of ${count(known_)} are shown: CLIENT LIST has all.`)
        : null,
      note('Sent and received are bytes of commands and values through this server.'),
    ),
    over('Clients', [['connected', 'clients']], count),
    over('Commands', [['a second', 'ops']], each),
  ];
}

/* --- events --- */

function eventsTable(events) {
  return table(
    ['when', 'about', 'what'],
    [...events]
      .reverse()
      .map((e) => [
        'e' + e.event,
        clock(e.time),
        e.kind,
        make(
          'span',
          { class: 'wrap ' + e.level },
          e.level === 'warning' ? make('b', {}, '! ') : null,
          e.text,
          e.times > 1 ? ` (${count(e.times)} times)` : '',
        ),
      ]),
    'Nothing has happened since the server started.',
  );
}

function eventsView() {
  const kinds = [...new Set(state.events.map((e) => e.kind))].sort();
  const shown = state.events.filter(
    (e) =>
      (!state.warnings || e.level === 'warning') && (!state.kind || e.kind === state.kind),
  );
  return [
    section(
      'Events',
      { class: 'wide', 'data-key': 'events' },
      make(
        'div',
        { class: 'tools' },
        make(
          'label',
          {},
          'About ',
          make(
            'select',
            { id: 'kind' },
            ['', ...kinds].map((k) =>
              make('option', { value: k, 'data-key': 'k' + k }, k || 'all'),
            ),
          ),
        ),
        make(
          'label',
          {},
          make('input', { type: 'checkbox', id: 'warnings' }),
          ' only warnings',
        ),
      ),
      make('div', { role: 'log', 'aria-label': 'Events, newest first' }, eventsTable(shown)),
      note('The last 256 lines of the log from level notice on, newest first. The log has more.'),
    ),
  ];
}
