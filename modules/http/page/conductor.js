/* --- Conductor: which engine serves a request, and why? --- */

/* Where the tokens of prompts come from: what decisions and, as route_..., the history call it. */
const SOURCES = [
  ['device', 'device memory', 'a'],
  ['host', 'host memory', 'f'],
  ['disk', 'disk', 'b'],
  ['ahead', 'about to be there', 'd'],
  ['session', 'probably, by session', 'g'],
  ['load', 'the pool', 'c'],
  ['fetch', 'another engine', 'e'],
  ['computed', 'computed', 'none'],
];
const CANDIDATES = 20; /* of one decision, shown at most */

const conducts = () => (state.info.modules.module || []).some((m) => m.module === 'conductor');
const briefly = (ms) => (ms < 10000 ? `${Math.round(ms)} ms` : lasting(ms));
const list = (name) => state['conductor/' + name] || [];

/* --- engines --- */

const engineAway = (e) => e.state === 'silent' || e.state === 'failing';

/* What is not as it should be, in words; [] : nothing. */
function engineTroubles(e) {
  const words = [];
  if (e.state === 'draining')
    words.push(`draining: ${some(e.prefills + e.decodes, 'request')} left`);
  else if (e.state === 'silent') words.push(`silent for ${lasting(e.silent)}`);
  else if (e.state === 'failing') words.push('failing: it rests');
  else if (e.state !== 'up') words.push(e.state);
  if (e.partial) words.push(`partial: ${e.partial_why}`);
  if (e.metrics === 'failing') words.push(`no load to be had: ${e.metrics_why}`);
  return words;
}

const learnt = (us) => (us >= 1000 ? millis(us / 1000) : `${us.toFixed(1)} µs`);

function engineDetails(e) {
  const rows = ['url', 'model', 'lora', 'role', 'tenant', 'host', 'rack']
    .filter((name) => e[name] !== '')
    .map((name) => [name, e[name]]);
  rows.push(
    ['queued', `${some(e.prefills, 'request')}, ${count(e.prefill_tokens)} tokens`],
    ['served', some(e.routed, 'request') + (e.failed ? `, ${count(e.failed)} failed` : '')],
    ['learnt', `${learnt(e.prefill_token)} a token, ${learnt(e.decode_step)} a decode step`],
    ['events', e.events + (e.gaps ? `, ${some(e.gaps, 'gap')}` : '')],
    ['known', some(e.blocks, 'block')],
    ['metrics', e.metrics],
  );
  if (e.silent >= 0) rows.push(['heard', `${lasting(e.silent)} ago`]);
  if (e.decode_errors)
    rows.push(['unreadable', `${some(e.decode_errors, 'batch', 'batches')}: ${e.decode_why}`]);
  return make(
    'dl',
    { class: 'facts' },
    rows.map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]),
  );
}

function engineCard(e, dense, models) {
  const key = 'engine' + e.engine;
  const troubles = engineTroubles(e);
  const hits = e.prompt_tokens ? `${percent(share(e.hit_tokens, e.prompt_tokens))} hits` : '';
  const kv = e.kv_blocks
    ? `${percent(share(e.kv_used, e.kv_blocks))} of ${count(e.kv_blocks)} blocks of KV in use`
    : `${some(e.kv_used, 'block')} of KV in use`;
  const about = [e.role === 'both' ? null : `${e.role} only`, models > 1 ? e.model : null];
  return make(
    'details',
    { class: 'node' + (engineAway(e) ? ' away' : troubles.length ? ' busy' : ''), 'data-key': key },
    make(
      'summary',
      {},
      make('span', { class: 'name' }, e.engine),
      make('span', { class: 'right' }, dense ? briefly(e.wait) : hits),
      troubles.length ? make('span', { class: 'trouble' }, troubles.join('; ')) : null,
      dense
        ? null
        : make(
            'span',
            { class: 'note' },
            `waits ${briefly(e.wait)}, decodes ${count(e.decodes)}`,
            about.filter(Boolean).map((word) => `, ${word}`),
          ),
      make(
        'span',
        { class: 'segments' },
        labelled(
          'KV',
          bar([[Math.min(e.kv_used, e.kv_blocks || 0), 'a']], e.kv_blocks, kv),
        ),
      ),
    ),
    state.opened.has(key) ? engineDetails(e) : null,
  );
}

function enginesSection() {
  const title = 'Engines';
  const all = [...list('engines')].sort((a, b) => byName(a.engine, b.engine));
  if (all.length === 0)
    return section(
      title,
      { class: 'wide', 'data-key': title },
      empty(
        state['conductor/engines'].missing
          ? 'This conductor.so is older than the page: CONDUCTOR.LIST tells of its engines.'
          : 'No engine is registered. CONDUCTOR.ADD e1 http://HOST:8000 MODEL name EVENTS ' +
              'tcp://HOST:5557 REPLAY tcp://HOST:6557 registers one.',
      ),
    );
  const models = new Set(all.map((e) => e.model)).size;
  return section(
    title,
    { class: 'wide', 'data-key': title },
    cards(all, {
      find: 'name, model, state',
      words: (e) =>
        [e.engine, e.model, e.lora, e.role, e.host, e.rack, e.state, e.partial ? 'partial' : '']
          .join(' '),
      none: 'No engine is called so.',
      worth: (e) => (engineAway(e) ? 0 : engineTroubles(e).length ? 1 : 2),
      card: (e, dense) => engineCard(e, dense, models),
    }),
    note(
      (all.length > MANY ? 'The time: until what waits there is computed. ' : '') +
        'Hits: tokens of prompts sent there that it had already. KV: what is reserved of its ' +
        'device memory, and what it reports beyond that.',
    ),
  );
}

/* --- decisions --- */

/* Those that are open stay, however many come after them. */
function keepDecisions(rows) {
  const before = list('decisions'),
    now = Date.now();
  const number = (d) => Number(d.decision);
  for (const d of rows) d.at = now - d.age;
  if (before.length && (!rows.length || number(rows[0]) < number(before[0]))) {
    state.candidates.clear(); /* another server: its numbers are of other decisions */
    return rows;
  }
  const has = new Set(rows.map((d) => d.decision));
  const open = (d) => state.opened.has('decision' + d.decision) && !has.has(d.decision);
  return Object.assign([...rows, ...before.filter(open)], { missing: rows.missing });
}

/* A decision does not change: its candidates are asked for once. */
async function askCandidates(number) {
  if (state.candidates.has(number)) return;
  state.candidates.set(number, await askList('conductor/candidates/' + number));
  show();
}

const gone = (name) => name || '(gone)';
/* Costs are large numbers. */
const shortly = (why) =>
  why.replace(/\d{5,}(\.\d+)?|\d+(\.\d+)?e\+\d+/g, (number) => count(Number(number)));

function candidatesTable(part, title) {
  if (part.length === 0) return null;
  const terms = Object.keys(part[0]).filter((name) => name.startsWith('term_'));
  const computes = part[0].part === 'computes';
  const tokens = computes ? ['hit', 'ahead', 'session', 'load', 'fetch', 'computed'] : [];
  const used = tokens.filter((name) => name === 'computed' || part.some((c) => c[name] > 0));
  const called = {
    hit: 'has',
    ahead: 'about to have',
    session: 'by session',
    load: 'from the pool',
    fetch: 'fetches',
  };
  const shown = [...part].sort((a, b) => a.cost - b.cost).slice(0, CANDIDATES);
  return [
    make('h3', {}, title),
    table(
      [
        'engine',
        right('cost'),
        ...terms.map((name) => right(name.slice(5))),
        ...(computes ? [right('TTFT')] : []),
        ...used.map((name) => right(called[name] || 'computes')),
        'why',
      ],
      shown.map((c) => [
        'candidate' + c.candidate,
        c.why === 'chosen' ? make('b', {}, gone(c.engine)) : gone(c.engine),
        right(count(c.cost)),
        ...terms.map((name) => right(count(c[name]))),
        ...(computes ? [right(millis(c.ttft / 1000))] : []),
        ...used.map((name) => right(unlessNone(count, c[name]))),
        make('span', { class: 'wrap why' }, shortly(c.why)),
      ]),
      '',
    ),
    part.length > shown.length
      ? note(`The best ${shown.length} of ${count(part.length)}: CONDUCTOR.EXPLAIN has all.`)
      : null,
  ];
}

function decisionDetails(d) {
  const all = state.candidates.get(d.decision);
  if (!all) return note('They are being asked for.');
  if (all.missing) return note('Who was looked at is not kept any more.');
  const part = (name) => all.filter((c) => c.part === name);
  const passed = part('passed over');
  return make(
    'div',
    {},
    candidatesTable(part('computes'), 'Who could compute it'),
    candidatesTable(part('decodes'), 'Who could decode it'),
    passed.length
      ? [
          make('h3', {}, 'Passed over'),
          table(
            ['engine', 'why'],
            passed.map((c) => [
              'candidate' + c.candidate,
              gone(c.engine),
              make('span', { class: 'wrap why' }, c.why),
            ]),
            '',
          ),
        ]
      : null,
    all.length === 0 ? note('Nobody serves that model.') : null,
  );
}

/* Where it went, in words. */
function decisionTo(d) {
  if (d.refused) return 'refused';
  const to = known(d.engine) ? [gone(d.engine)] : [];
  if (known(d.decode_engine)) to.push(gone(d.decode_engine));
  return '→ ' + to.join(' → ');
}

function decisionWhy(d) {
  if (d.refused)
    return d.refused + (d.retry ? `. To be asked again in ${briefly(d.retry)}.` : '.');
  if (known(d.second)) return `Second was ${gone(d.second)}: ${shortly(d.second_why)}.`;
  if (!d.policy) return 'Who decodes was chosen anew.';
  return d.candidates === 1 ? 'There was no other to choose.' : '';
}

function decisionCard(d) {
  const key = 'decision' + d.decision;
  const parts = SOURCES.filter(([name]) => name !== 'computed' && d[name] > 0);
  const told = [...parts, SOURCES.at(-1)].map(([name, what]) => `${count(d[name])} ${what}`);
  return make(
    'details',
    { class: 'node' + (d.refused ? ' away' : ''), 'data-key': key },
    make(
      'summary',
      {},
      make('span', { class: 'name' }, d.request),
      make('b', {}, decisionTo(d)),
      make(
        'span',
        { class: 'note' },
        [
          d.model,
          some(d.tokens, 'token'),
          known(d.ttft) && !d.refused ? `TTFT ${millis(d.ttft / 1000)}` : null,
          `${lasting(Date.now() - d.at)} ago`,
        ]
          .filter(Boolean)
          .join(', '),
      ),
      known(d.engine) && !d.refused
        ? make(
            'span',
            { class: 'segments' },
            bar(
              parts.map(([name, , of]) => [d[name], of]),
              d.tokens,
              `Tokens: ${told.join(', ')}`,
            ),
          )
        : null,
      make('span', { class: d.refused ? 'trouble' : 'note' }, decisionWhy(d)),
    ),
    state.opened.has(key) ? decisionDetails(d) : null,
  );
}

function decisionsSection() {
  const title = 'Last decisions';
  const all = list('decisions');
  if (all.length === 0)
    return section(
      title,
      { class: 'wide', 'data-key': title },
      empty(
        all.missing
          ? 'This conductor.so is older than the page: CONDUCTOR.EXPLAIN tells of a decision.'
          : 'Nothing was asked yet: CONDUCTOR.ROUTE request MODEL name LENGTH 1000 asks.',
      ),
    );
  return section(
    title,
    { class: 'wide', 'data-key': title },
    make(
      'div',
      { class: 'tools' },
      make(
        'div',
        { class: 'legend' },
        SOURCES.filter(([name]) => name === 'computed' || all.some((d) => d[name] > 0)).map(
          ([, what, of]) => make('span', {}, swatch(of), what),
        ),
      ),
    ),
    make('div', { class: 'nodes few decisions' }, all.map(decisionCard)),
    note('Open one: it stays, with all who were looked at and each part of their cost.'),
  );
}

/* --- hot prefixes --- */

function hotSection() {
  const title = 'Hot prefixes';
  if (list('prefixes').missing) return null;
  const engines = list('engines').length;
  const rows = list('prefixes').map((p) => [
    p.prefix + p.model,
    make('code', { title: p.prefix }, p.prefix.slice(0, 8)),
    make('span', { class: 'wrap' }, p.model ? p.model + (p.lora ? `, ${p.lora}` : '') : '–'),
    right(count(p.tokens)),
    right(count(p.asked)),
    right(`${count(p.engines)} of ${count(engines)}`),
  ]);
  return section(
    title,
    { 'data-key': title },
    table(
      ['hash', 'model', right('tokens'), right('asked'), right('engines')],
      rows.slice(0, 8),
      'None: engines have told of no blocks that were asked for, or few were asked for yet.',
    ),
    rows.length
      ? note(
          'By the rolling hash of the last block, its first digits. Asked: how often, of late, ' +
            'from one look-up in 16. Engines: those that have all of it.',
        )
      : null,
  );
}

/* --- all of it --- */

function sourcesPlot() {
  const { series } = state.history;
  const of = (name) => series['route_' + name] || [];
  const found = SOURCES.slice(0, -1).map(([name]) => of(name));
  /* an older conductor.so does not tell hits by tier */
  const left = (all, i) => found.reduce((rest, points) => rest - (points[i] || 0), all);
  const computed = of('prompt').map((all, i) =>
    known(all) && known(found[0][i]) ? Math.max(0, left(all, i)) : null,
  );
  const lines = SOURCES.map(([name, what, colour]) => [
    what,
    name === 'computed' ? computed : of(name),
    colour,
  ]);
  return over(
    'Where tokens of prompts come from',
    lines.filter(([, v], i) => i === 0 || i === lines.length - 1 || v.some((n) => n > 0)),
    each,
    null,
    'Tokens a second, as decided.',
    true,
  );
}

function conductorView() {
  if (!conducts())
    return [
      section(
        null,
        { class: 'wide', 'data-key': 'none' },
        empty('There is no Conductor here: tarn-server --loadmodule conductor.so has one.'),
      ),
    ];
  const f = state.info.modules;
  const engines = list('engines');
  const refused = f.route_overloaded + f.route_over_share + f.route_unserved;
  const hits = f.route_hit_tokens + f.route_ahead_tokens + f.route_load_tokens;
  return [
    numbers(
      engines.missing
        ? ['Engines', count(f.route_workers)]
        : ['Engines up', `${engines.filter((e) => e.state === 'up').length} of ${engines.length}`],
      ['Decisions', count(f.route_decisions)],
      ['Refused', count(refused)],
      ['Tokens found', f.route_prompt_tokens ? percent(hits / f.route_prompt_tokens) : '–'],
      ['Under way', count(f.route_reserved)],
      ['Streams partial', `${count(f.conductor_streams_partial)} of ${count(f.conductor_streams)}`],
    ),
    sourcesPlot(),
    over(
      'Decisions',
      [
        ['decided', 'route_decisions'],
        ['refused', 'route_refused'],
      ],
      each,
    ),
    hotSection(),
    enginesSection(),
    decisionsSection(),
  ];
}
