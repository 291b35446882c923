// Keeps the parts of a page that are marked data-live as the daemon shows them now.
import { now, place, setNow, tick } from './time.js';

// What scripts and readers change in elements: it is kept.
const kept = { details: ['open'], time: ['class', 'title'], tr: ['class'], button: ['disabled'] };
const key = (node) => node.dataset?.key || node.id;

// patch makes an element like a fresh one. What is the same stays, and with it the focus, and what is
// unfolded or typed.
export function patch(old, fresh) {
  if (old.localName !== fresh.localName) {
    old.replaceWith(fresh);
    old = fresh;
  } else morph(old, fresh);
  tick(old);
  place(old);
}

function morph(old, fresh) {
  const mine = kept[old.localName] ?? [];
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && !mine.includes(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value && !mine.includes(name)) old.setAttribute(name, value);
  if (old.matches('time, [data-copy]')) return; // scripts write their text
  const keyed = new Map([...old.children].map((child) => [key(child), child]));
  let at = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const same = key(node) ? keyed.get(key(node)) : at;
    if (same?.nodeName !== node.nodeName || key(same) !== key(node)) {
      old.insertBefore(node, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    keyed.delete(key(same));
    if (node.nodeType === Node.ELEMENT_NODE) morph(same, node);
    else if (same.data !== node.data) same.data = node.data;
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// selected reports whether the reader marks text in a part.
function selected(part) {
  const marked = getSelection();
  return !marked.isCollapsed && marked.containsNode(part, true);
}

// show puts the parts of a document on the page.
export function show(doc) {
  if (doc.title) document.title = doc.title;
  for (const part of doc.querySelectorAll('[data-live]')) {
    const old = document.getElementById(part.id);
    if (old && !selected(old)) patch(old, part);
  }
}

const banner = document.getElementById('lost');
let heard = now();

// connected says that the daemon was heard, lost that and why it is not heard any more.
export function connected() {
  heard = now();
  banner.hidden = true;
}
export function lost(reason) {
  const [text, time] = banner.querySelectorAll('span, time');
  text.textContent = reason;
  time.dateTime = new Date(heard).toISOString();
  place(banner);
  banner.hidden = false;
}

// at returns the URL of a path. Relative to a page whose URL has a password, fetch would refuse it.
export const at = (path) => new URL(path, location.origin);

async function read(query) {
  const response = await fetch(at(location.pathname + query), { signal: AbortSignal.timeout(15_000) });
  if (!response.ok && response.status !== 404) throw new Error(`the daemon answers ${response.status}`);
  const text = await response.text();
  const doc = new DOMParser().parseFromString(text, 'text/html');
  if (!doc.body.dataset.now) throw new Error('the answer is not a page of the daemon');
  return { doc, size: text.length };
}

const version = (doc) => doc.getElementById('lock')?.dataset.version;
let timer;

// refresh reads the page again, and then waits: longer for a large page. The page of a lock is read
// with its history only if its version is another one.
export async function refresh() {
  clearTimeout(timer);
  let size = 0;
  try {
    const query = new URLSearchParams(location.search);
    query.set('live', '1');
    const live = await read(`?${query}`);
    size = live.size;
    setNow(live.doc.body.dataset.now);
    if (version(live.doc) !== version(document)) {
      const { doc } = await read(location.search);
      patch(document.getElementById('lock'), doc.getElementById('lock'));
      document.title = doc.title;
    }
    show(live.doc);
    connected();
  } catch (error) {
    lost(error.message);
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, Math.max(3000, size / 10));
}

if (!document.getElementById('locks')) { // the dashboard has a stream
  timer = setTimeout(refresh, 3000);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
}
