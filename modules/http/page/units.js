/* --- numbers, as people read them --- */

const known = (value) => value !== null && value !== undefined;

function short(value, units, step) {
  let i = 0;
  while (Math.abs(value) >= step && i < units.length - 1) {
    value /= step;
    i++;
  }
  const digits = Number.isInteger(value) && (i === 0 || value >= 10) ? 0 : value < 10 ? 2 : 1;
  return value.toFixed(digits) + units[i];
}
const count = (v) => (known(v) ? short(v, ['', ' k', ' M', ' G'], 1000) : '–');
const bytes = (v) =>
  known(v) ? short(v, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB'], 1024) : '–';
const rate = (v) => (known(v) ? bytes(v) + '/s' : '–');
const each = (v) => (known(v) ? count(v) + '/s' : '–');
const percent = (v) => (known(v) ? (100 * v).toFixed(1) + ' %' : '–');
const millis = (v) => (known(v) ? (v < 1 ? v.toFixed(3) : v.toFixed(1)) + ' ms' : '–');
const share = (part, whole) => (whole > 0 ? part / whole : 0);

/* What is usually 0 is seen when it is not. */
const unlessNone = (form, v) => (v ? form(v) : '–');

function lasting(ms) {
  if (!known(ms)) return '–';
  if (ms < 1000) return 'under 1 s';
  if (ms < 120000) return (ms / 1000).toFixed(0) + ' s';
  if (ms < 7200000) return (ms / 60000).toFixed(0) + ' min';
  if (ms < 172800000) return (ms / 3600000).toFixed(0) + ' h';
  return (ms / 86400000).toFixed(0) + ' days';
}

/* "1 node", "2 nodes" */
const some = (n, one, more) => `${count(n)} ${n === 1 ? one : more || one + 's'}`;

/* n9 before n10 */
const byName = new Intl.Collator(undefined, { numeric: true }).compare;

function clock(ms) {
  const t = new Date(ms);
  const day = t.toDateString() === new Date().toDateString() ? '' : t.toLocaleDateString() + ' ';
  return day + t.toLocaleTimeString([], { hourCycle: 'h23' });
}
