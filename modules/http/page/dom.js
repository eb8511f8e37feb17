'use strict';
/* Making elements, and bringing what is shown up to date without making it anew: whoever has the
 * focus, has scrolled, or has opened something, keeps that. Everything that comes from the server
 * is put into the page as text, never as markup. */

const byId = (id) => document.getElementById(id);
const NS = 'http://www.w3.org/2000/svg';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'data') element.data = value; /* for those who listen: morph hands it on */
    else if (value !== undefined && value !== null && value !== false)
      element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return element;
}
const make = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS(NS, tag), attributes, children);

/* What people change themselves is theirs. */
const THEIRS = ['open', 'value'];

function morphAttributes(live, fresh) {
  for (const { name, value } of fresh.attributes) {
    if (live.getAttribute(name) === value) continue;
    if (name === 'style') live.style.cssText = value;
    else live.setAttribute(name, value);
  }
  for (const { name } of [...live.attributes])
    if (!fresh.hasAttribute(name) && !THEIRS.includes(name)) live.removeAttribute(name);
  live.data = fresh.data;
}

const keyOf = (node) => (node.dataset && node.dataset.key) || '';

function morph(live, fresh) {
  if (live.nodeName !== fresh.nodeName || keyOf(live) !== keyOf(fresh)) {
    live.replaceWith(fresh);
    return;
  }
  if (live.nodeType !== Node.ELEMENT_NODE) {
    if (live.nodeValue !== fresh.nodeValue) live.nodeValue = fresh.nodeValue;
    return;
  }
  morphAttributes(live, fresh);
  morphChildren(live, [...fresh.childNodes]);
}

/* Children with a key stay who they are wherever they move; others are told by their place. Those
 * that are gone go first, so that who comes behind them need not move: it would lose the focus. */
function morphChildren(live, fresh) {
  const keyed = new Map(),
    stay = new Set(fresh.map(keyOf));
  for (const child of [...live.childNodes]) {
    if (!keyOf(child)) continue;
    if (stay.has(keyOf(child))) keyed.set(keyOf(child), child);
    else child.remove();
  }
  let at = live.firstChild;
  for (const child of fresh) {
    const same = keyOf(child) ? keyed.get(keyOf(child)) : at && !keyOf(at) ? at : null;
    if (!same) {
      live.insertBefore(child, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else live.insertBefore(same, at);
    morph(same, child);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/* --- parts that views are made of --- */

/* attributes: class, data-key. */
const section = (title, attributes, ...children) =>
  make('section', attributes, title ? make('h2', {}, title) : null, ...children);
const note = (text) => (text ? make('p', { class: 'note' }, text) : null);
const empty = (text) => make('p', { class: 'empty' }, text);
const swatch = (of) => make('span', { class: 'swatch ' + of });

function numbers(...pairs) {
  return section(
    null,
    { class: 'wide' },
    make(
      'dl',
      { class: 'numbers' },
      pairs.map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))),
    ),
  );
}

function bar(parts, whole, name) {
  return make(
    'span',
    { class: 'bar', role: 'img', 'aria-label': name, title: name },
    parts.map(([value, of]) => {
      const piece = make('i', { class: of });
      piece.style.width = 100 * share(value, whole) + '%';
      return piece;
    }),
  );
}

const MANY = 40; /* cards: then each is smaller */

/* A card of each of `all`, those of least worth first, and of more than some the words by which one
 * is sought: card(one, dense) makes it, words(one) are what it is found by, find says which these
 * are. tools: what is beside that. */
function cards(all, { find, words, none, worth, card }, ...tools) {
  const wanted = state.filter.trim().toLowerCase(),
    dense = all.length > MANY;
  const shown = all
    .filter((one) => words(one).toLowerCase().includes(wanted))
    .sort((a, b) => worth(a) - worth(b));
  if (all.length > 8)
    tools.push(
      make(
        'label',
        { 'data-key': 'filter' },
        'Find ',
        make('input', { type: 'search', id: 'filter', placeholder: find }),
      ),
    );
  return [
    tools.length > 0 ? make('div', { class: 'tools' }, tools) : null,
    shown.length === 0 ? empty(none) : null,
    make(
      'div',
      { class: dense ? 'nodes dense' : all.length < 4 ? 'nodes few' : 'nodes' },
      shown.map((one) => card(one, dense)),
    ),
  ];
}

const right = (text) => ({ right: text });

/* heads: text, right(text), or {sort, text}; rows: [key, ...cells]. */
function table(heads, rows, otherwise) {
  if (rows.length === 0) return empty(otherwise);
  const cell = (tag, v) => {
    const value = v && v.right !== undefined ? v.right : v;
    const attributes = { class: v && v.right !== undefined ? 'right' : undefined };
    if (tag === 'th') {
      attributes.scope = 'col';
      if (v.sort) attributes['aria-sort'] = v.sort;
    }
    return make(tag, attributes, value);
  };
  return make(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table' },
    make(
      'table',
      {},
      make(
        'thead',
        {},
        make(
          'tr',
          {},
          heads.map((h) => cell('th', h)),
        ),
      ),
      make(
        'tbody',
        {},
        rows.map(([key, ...cells]) =>
          make(
            'tr',
            { 'data-key': key },
            cells.map((v) => cell('td', v)),
          ),
        ),
      ),
    ),
  );
}
