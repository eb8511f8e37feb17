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
  /* the history has seven digits: 1 GiB may come as somewhat more */
  if (form === bytes || form === rate) return 2 ** Math.ceil(Math.log2(most) - 1e-6);
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= most);
}

function grid(form, top, y) {
  return [0, 0.5, 1].map((part) => [
    draw('line', {
      class: 'grid',
      x1: LEFT,
      x2: WIDE - RIGHT,
      y1: y(part * top),
      y2: y(part * top),
    }),
    draw('text', { x: LEFT - 6, y: y(part * top) + 4, 'text-anchor': 'end' }, form(part * top)),
  ]);
}

const colourOf = ([, , colour], i) => colour || COLOURS[i];

/* One on top of the other: each an area, from the sum of those before it to that with its own. */
function areas(lines, x, y) {
  let below = lines[0][1].map(() => 0);
  return lines.map((line, i) => {
    const above = below.map((v, at) => (known(line[1][at]) ? v + line[1][at] : null));
    let path = '';
    for (let from = 0, to; from < above.length; from = to + 1) {
      for (to = from; known(above[to]); ) to++;
      if (to === from) continue;
      const place = (of) => (v, k) => `${x(from + k).toFixed(1)} ${y(of[from + k]).toFixed(1)}`;
      const upper = above.slice(from, to).map(place(above)),
        lower = below.slice(from, to).map(place(below));
      path += `M${upper.join('L')}L${lower.reverse().join('L')}Z`;
    }
    below = above.map((v, at) => (known(v) ? v : below[at]));
    return draw('path', { class: 'area ' + colourOf(line, i), d: path });
  });
}

/* lines: [name, values, colour]; x: index to place; label: index to text. */
function plot(title, lines, form, x, label, top, dots, stacked) {
  const y = (v) => HIGH - BOTTOM - ((HIGH - TOP - BOTTOM) * v) / top;
  const n = lines[0][1].length,
    points = [],
    paths = stacked ? areas(lines, x, y) : [];
  (stacked ? [] : lines).forEach((line, i) => {
    const values = line[1];
    let path = '',
      pen = 'M';
    values.forEach((v, at) => {
      if (!known(v)) {
        pen = 'M';
        return;
      }
      path += pen + x(at).toFixed(1) + ' ' + y(Math.min(v, top)).toFixed(1);
      const alone = pen === 'M' && !known(values[at + 1]);
      pen = 'L';
      if (dots || alone)
        points.push(
          draw('circle', {
            class: 'dot ' + colourOf(line, i),
            cx: x(at),
            cy: y(Math.min(v, top)),
            r: dots ? 3 : 1.8,
          }),
        );
    });
    paths.push(draw('path', { class: 'line ' + colourOf(line, i), d: path }));
  });
  const labels = (dots ? [...Array(n).keys()] : n > 1 ? [0, n - 1] : [0]).map((at) =>
    draw(
      'text',
      { x: x(at), y: HIGH - 5, 'text-anchor': dots ? 'middle' : at === n - 1 ? 'end' : 'start' },
      label(at),
    ),
  );
  const cross = draw('line', { class: 'cross', y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  return draw(
    'svg',
    { viewBox: `0 0 ${WIDE} ${HIGH}`, role: 'img', 'aria-label': title, tabindex: 0 },
    grid(form, top, y),
    paths,
    points,
    labels,
    cross,
  );
}

/* One that tells its values where the pointer or the cursor keys are, else the last ones; of dots,
 * those in the middle. */
function chart(title, lines, form, x, label, top, dots, text, stacked) {
  const n = lines[0][1].length,
    rest = dots ? (n - 1) / 2 : n - 1;
  const svg = plot(title, lines, form, x, label, top, dots, stacked);
  const legend = lines.map((line, i) =>
    make('span', {}, swatch(colourOf(line, i)), line[0] + ' ', make('b', {}, form(line[1][rest]))),
  );
  const told = lines.map(([name, values]) => `${name}: ${form(values[rest])}`).join(', ');
  svg.setAttribute('aria-label', `${title}; ${told}`);
  svg.data = { n, x, form, lines, label, rest, dots };
  return section(
    title,
    { 'data-key': title },
    svg,
    make('div', { class: 'legend' }, legend, make('span', {}, dots ? label(rest) : '')),
    note(text),
  );
}

/* at: an index; null: none in particular. */
function chartTell(svg, at) {
  const { x, form, lines, label, rest, dots } = svg.data;
  const cross = svg.querySelector('.cross'),
    legend = svg.nextElementSibling;
  const shown = at === null ? rest : at;
  svg.at = at;
  for (const end of ['x1', 'x2']) cross.setAttribute(end, at === null ? -9 : x(at));
  [...legend.querySelectorAll('b')].forEach((value, i) => {
    value.textContent = form(lines[i][1][shown]);
  });
  legend.lastChild.textContent = at === null && !dots ? '' : label(shown);
}

function chartPointed(svg, clientX) {
  const box = svg.getBoundingClientRect(),
    { n, x } = svg.data;
  const to = ((clientX - box.left) * WIDE) / box.width;
  let best = 0;
  for (let i = 1; i < n; i++) if (Math.abs(x(i) - to) < Math.abs(x(best) - to)) best = i;
  chartTell(svg, best);
}

/* For all charts of the page, as they come and go. */
function chartsListen(view) {
  const chartAt = (event) => {
    const svg = event.target.closest && event.target.closest('svg');
    return svg && svg.data ? svg : null;
  };
  view.addEventListener('pointermove', (event) => {
    const svg = chartAt(event);
    if (svg) chartPointed(svg, event.clientX);
  });
  for (const leaves of ['pointerout', 'focusout'])
    view.addEventListener(leaves, (event) => {
      const svg = chartAt(event);
      if (svg && !svg.contains(event.relatedTarget)) chartTell(svg, null);
    });
  view.addEventListener('keydown', (event) => {
    const svg = chartAt(event),
      step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!svg || !step) return;
    const from = known(svg.at) ? svg.at : svg.data.n - 1;
    chartTell(svg, Math.max(0, Math.min(svg.data.n - 1, from + step)));
    event.preventDefault();
  });
}

/* Of the history: names of series, or values like theirs. */
function over(title, names, form, top, text, stacked) {
  const series = state.history.series,
    step = state.history.step_ms;
  const lines = names.map(([name, of, colour]) => [
    name,
    Array.isArray(of) ? of : series[of] || [],
    colour,
  ]);
  const n = lines[0][1].length;
  if (n === 0 || !lines.some(([, v]) => v.some(known)))
    return section(title, { 'data-key': title }, empty('Nothing was measured yet.'));
  const x = (i) => LEFT + (WIDE - LEFT - RIGHT) * (n > 1 ? i / (n - 1) : 1);
  const label = (i) => (i === n - 1 ? 'now' : '−' + lasting((n - 1 - i) * step));
  const all = stacked
    ? lines[0][1].map((v, at) => lines.reduce((sum, [, more]) => sum + (more[at] || 0), 0))
    : lines.flatMap(([, v]) => v);
  return chart(title, lines, form, x, label, top || niceTop(all, form), false, text, stacked);
}

/* Values by size, as bars: upto is [bound, how many so large or less]. */
function spread(title, hist, text, otherwise) {
  if (!hist || hist.count === 0) return section(title, { 'data-key': title }, empty(otherwise));
  let before = 0,
    from = null;
  const rows = hist.upto.map(([bound, upto]) => {
    const row = [from === null ? 'up to ' + lasting(bound) : 'to ' + lasting(bound), upto - before];
    before = upto;
    from = bound;
    return row;
  });
  rows.push(['longer', hist.count - before]);
  const most = Math.max(...rows.map(([, n]) => n));
  return section(
    title,
    { 'data-key': title },
    make(
      'div',
      { class: 'spread' },
      rows.map(([name, n]) => [
        make('span', {}, name),
        bar([[n, 'a']], most, `${name}: ${count(n)}`),
        make('span', { class: 'right' }, n ? percent(share(n, hist.count)) : '–'),
      ]),
    ),
    note(`Median ${lasting(hist.p50)}, 90 % ${lasting(hist.p90)}. ${text}`),
  );
}
