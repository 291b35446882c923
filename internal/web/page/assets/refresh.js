// Keeps the parts of a page that are marked data-live as the daemon shows them now.
import { notice } from './status.js';
import { place, setNow, tick } from './time.js';

const pause = 3000;
let timer, seen = document.body.dataset.now;

const name = (details) => [details.closest('[data-key]')?.dataset.key, details.id || details.querySelector('summary').textContent].join('/');
const all = (root) => [...(root.matches('details') ? [root] : []), ...root.querySelectorAll('details')];

// plain is the HTML of a part without the times that tick by themselves.
function plain(part) {
  const copy = part.cloneNode(true);
  for (const time of copy.querySelectorAll('time')) {
    time.textContent = '';
    for (const name of ['class', 'title']) time.removeAttribute(name);
  }
  for (const button of copy.querySelectorAll('[data-copy]')) { button.hidden = true; button.textContent = ''; }
  for (const details of all(copy)) details.open = false;
  return copy.outerHTML;
}

// replace puts the new part in the place of the old one. What was open stays open, and the focus stays.
function replace(old, part) {
  const open = new Set(all(old).filter((d) => d.open).map(name));
  for (const details of all(part)) details.open = open.has(name(details));
  const focused = old.contains(document.activeElement) && document.activeElement;
  old.replaceWith(part);
  if (focused?.id) document.getElementById(focused.id)?.focus();
  else if (focused?.localName === 'summary') all(part).find((d) => name(d) === name(focused.parentElement))?.querySelector('summary').focus();
  document.dispatchEvent(new CustomEvent('replaced', { detail: part }));
}

// selected reports whether the reader marks text in a part.
function selected(part) {
  const marked = getSelection();
  return !marked.isCollapsed && marked.containsNode(part, true);
}

async function page(query) {
  const response = await fetch(location.pathname + query, { signal: AbortSignal.timeout(15000) });
  if (!response.ok && response.status !== 404) throw new Error(`the daemon answers ${response.status}`);
  const text = await response.text();
  return { doc: new DOMParser().parseFromString(text, 'text/html'), size: text.length };
}

// show puts what has changed in a document on the page.
function show(doc) {
  const now = doc.body?.dataset.now;
  if (!now) throw new Error('the answer is not a page of the daemon');
  setNow(now);
  const whole = document.getElementById('lock'), other = doc.getElementById('lock');
  if (whole && whole.dataset.version !== other?.dataset.version) return false;
  for (const part of doc.querySelectorAll('[data-live]')) {
    const old = document.getElementById(part.id);
    if (old && !selected(old) && plain(old) !== plain(part)) replace(old, part);
  }
  return true;
}

// connection says that what is shown may be old.
function connection(error) {
  let box = document.getElementById('connection');
  if (!error) { box?.remove(); return; }
  if (box) return;
  const list = document.createElement('ul');
  list.className = 'banner';
  list.append(notice('bad', 'The connection to unlocker is lost:', error.message, 'the page is as of', seen));
  box = document.createElement('div');
  box.id = 'connection';
  box.setAttribute('role', 'status');
  document.getElementById('main').prepend(box);
  place(list);
  box.append(list); // after the box, or a screen reader does not notice
}

// refresh reads the page again, and then waits: longer for a large page.
export async function refresh() {
  clearTimeout(timer);
  let size = 0;
  try {
    const params = new URLSearchParams(location.search);
    params.set('live', '1');
    const live = await page('?' + params);
    size = live.size;
    if (!show(live.doc)) {
      const { doc } = await page(location.search);
      replace(document.getElementById('lock'), doc.getElementById('lock'));
      document.title = doc.title;
    }
    seen = live.doc.body.dataset.now;
    connection();
    document.querySelector('footer').replaceWith(live.doc.querySelector('footer'));
    tick();
    place();
  } catch (error) {
    connection(error);
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, Math.max(pause, size / 10));
}

timer = setTimeout(refresh, pause);
document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
