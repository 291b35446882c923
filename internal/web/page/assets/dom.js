// Elements, and untrusted text in them.

// element creates an element. Empty attributes and children are left out.
export function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value) e.setAttribute(name, value);
  e.append(...children.filter((child) => child));
  return e;
}

const clean = /^(?!["\s])[\p{L}\p{M}\p{N}\p{P}\p{S} ]*(?<!\s)$/u;
const hidden = /[\p{Default_Ignorable_Code_Point}\u2800]|(^|\p{M}{3})\p{M}/u;
const unsafe = /["\\]|[^\p{L}\p{M}\p{N}\p{P}\p{S} ]|[\p{Default_Ignorable_Code_Point}\u2800]|(?<=^|\p{M}{3})\p{M}/gu;

// line makes one line of text safe for the eye: quoted and escaped where it has characters
// that are invisible or change the direction, as the daemon does it.
export function line(text) {
  if (!text || (clean.test(text) && !hidden.test(text))) return text ?? '';
  return `"${text.replace(unsafe, escaped)}"`;
}

// sentence is what the daemon says, whose times are UTC.
export const sentence = (text) => line(text?.replace(/\b\d\d:\d\d:\d\d\b/g, '$& UTC'));

function escaped(c) {
  const code = c.codePointAt(0);
  if (c === '"' || c === '\\') return `\\${c}`;
  if (c === '\n') return '\\n';
  if (c === '\t') return '\\t';
  if (code < 0x80) return `\\x${code.toString(16).padStart(2, '0')}`;
  if (code > 0xffff) return `\\U${code.toString(16).padStart(8, '0')}`;
  return `\\u${code.toString(16).padStart(4, '0')}`;
}

const prefix = document.body.dataset.prefix;

// link returns the path of the page of a lock. It keeps slashes, unless a browser would
// resolve the segments between them.
export function link(name) {
  const segments = name.split('/');
  const escape = (s) => encodeURIComponent(s).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`)
    .replace(/%(24|26|2B|3A|3D|40)/g, decodeURIComponent);
  return `${prefix}/locks/${segments.some((s) => s === '.' || s === '..') ? escape(name) : segments.map(escape).join('/')}`;
}

// when returns a time that counts, or a dash.
export function when(tick, ms) {
  if (ms === null) return '–';
  return element('time', { datetime: new Date(ms).toISOString(), 'data-tick': tick }, ' ');
}

// clock returns a time of the day.
export const clock = (ms) => element('time', { datetime: new Date(ms).toISOString(), 'data-zone': 'clock' }, ' ');

// count formats a number.
export const count = (n) => n.toLocaleString('en-US');
