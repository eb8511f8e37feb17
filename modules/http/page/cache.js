/* --- Cache: where did the hits go? --- */

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

function split(title, of, parts, prefix, text, otherwise) {
  const whole = parts.reduce((sum, [name]) => sum + (of[prefix + name] || 0), 0);
  if (whole === 0) return section(title, { 'data-key': title }, empty(otherwise), note(text));
  return section(
    title,
    { 'data-key': title },
    bar(
      parts.map(([name], i) => [of[prefix + name] || 0, COLOURS[i]]),
      whole,
      title,
    ),
    table(
      ['why', right('since the start'), right('share')],
      parts.map(([name, what], i) => [
        name,
        make('div', {}, swatch(COLOURS[i]), name, note(what)),
        right(count(of[prefix + name] || 0)),
        right(percent(share(of[prefix + name] || 0, whole))),
      ]),
      '',
    ),
    note(text),
  );
}

function curve(cache, policy) {
  const sizes = ['quarter', 'half', 'this', 'twice', 'four_times'],
    labels = ['¼', '½', 'as it is', '2×', '4×'];
  const title = 'Hit ratio, were the pool as large';
  if (!known(cache.curve_lru_this))
    return section(
      title,
      { 'data-key': title },
      empty('Nothing was looked up in the last minutes: there is no curve yet.'),
    );
  const lines = [];
  if (known(cache.curve_this))
    lines.push(['with ' + policy, sizes.map((s) => cache['curve_' + s])]);
  if (policy !== 'lru')
    lines.push(['with lru', sizes.map((s) => cache['curve_lru_' + s])]);
  const x = (i) => LEFT + 20 + ((WIDE - LEFT - RIGHT - 40) * i) / (sizes.length - 1);
  return chart(
    title,
    lines,
    percent,
    x,
    (i) => labels[i],
    1,
    true,
    (cache.curve_one_in > 1 ? `From one key in ${cache.curve_one_in}, of` : 'Of') +
      ' the last minutes; CACHE CURVE tells the error.' +
      (known(cache.curve_this) ? '' : ` Of ${policy}, which looks at chains, it cannot tell.`),
  );
}

function doctor() {
  if (!state.doctor) return null;
  return section(
    'In words',
    { class: 'wide', 'data-key': 'doctor' },
    make(
      'ul',
      { class: 'words' },
      state.doctor.map((l) => make('li', {}, l.text.replace(/^- /, ''))),
    ),
  );
}

function prefixes() {
  const all = state.prefixes || [];
  const title = 'Prefixes with the most';
  if (all.length === 0)
    return section(
      title,
      { class: 'wide', 'data-key': title },
      empty('Nothing was looked up or put yet.'),
    );
  const list = (by, form) =>
    make(
      'div',
      {},
      make('h3', {}, by),
      table(
        ['prefix', right(by)],
        all
          .filter((p) => p.by === by)
          .slice(0, 10)
          .map((p) => [p.prefix, p.prefix || '(none)', right(form(p.count))]),
        'None yet.',
      ),
    );
  return section(
    title,
    { class: 'wide', 'data-key': title },
    make(
      'div',
      { class: 'three' },
      list('hits', count),
      list('misses', count),
      list('bytes', bytes),
    ),
    note('Counts are halved every ten minutes. CACHE PREFIXES tells the error.'),
  );
}

function cacheView() {
  const { cache, eviction } = state.info;
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
    doctor(),
    split(
      'Why look-ups missed',
      cache,
      REASONS,
      'misses_',
      cache.misses_one_in > 1
        ? `From one key in ${cache.misses_one_in}.`
        : 'All keys are followed.',
      'No look-up has missed.',
    ),
    split(
      'What evictions were for',
      eviction,
      CAUSES,
      'evictions_',
      'Policy: ' + eviction.eviction_policy,
      'Nothing was evicted.',
    ),
    curve(cache, eviction.eviction_policy),
    spread(
      'Unused before eviction',
      eviction.evicted_idle,
      'Short times mean that the pool is small for what is asked of it.',
      'Nothing was evicted.',
    ),
    spread(
      'Asked again after eviction',
      cache.asked_again,
      'These would have been hits, had they stayed so much longer.',
      'Nothing that was evicted was asked for again.',
    ),
    over(
      'Misses by reason',
      REASONS.map(([name]) => [name, 'misses_' + name]),
      each,
    ),
    over(
      'Evictions by cause',
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
    prefixes(),
  ];
}
