// The table of the dashboard, live. The daemon sends the HTML of what has changed; the order of the
// rows waits for the reader.
import { at, connected, lost, patch, show } from './live.js';
import { now, place, setNow, tick } from './time.js';

const table = document.getElementById('locks');
const body = table.tBodies[0];
const reorder = document.getElementById('reorder');
const live = document.getElementById('live');
const limit = Number(table.dataset.limit);

const waiting = new Map(); // id → a row of the window that is not in the table yet
let moved = 0, settled = 0;

// calm reports whether a row can wait for its place: a lock that is held changes its place with each
// renewal, and moves through a full window whenever others are renewed.
const calm = (tr) => tr.dataset.state === 'held';

// order is where a row belongs, as text. tr.placed is the order by which it stands where it is.
const order = (tr) => tr.dataset.place + decodeURIComponent(tr.id);

const full = () => waiting.size + [...body.rows].filter((tr) => !tr.gone).length >= limit;

function flash(tr) {
  tr.classList.remove('changed');
  requestAnimationFrame(() => tr.classList.add('changed'));
}

// leave marks a row that is not in the window any more: tr.gone, until it is removed or comes back.
function leave(tr) {
  tr.gone = true;
  if (calm(tr) && full()) return; // others have displaced it
  const state = tr.cells[0].firstChild;
  state.className = 'state gone';
  state.textContent = 'gone';
}

// update puts an event on the page: rows, and other parts.
function update(doc) {
  show(doc);
  if (doc.querySelector('[data-all]')) {
    waiting.clear();
    for (const tr of body.rows) if (!doc.getElementById(tr.id)) leave(tr);
  }
  for (const tr of doc.querySelectorAll('#rows > tr')) {
    const old = document.getElementById(tr.id);
    if (!tr.cells.length) {
      waiting.delete(tr.id);
      if (old) leave(old);
    } else if (old) {
      if (old.dataset.state !== tr.dataset.state) flash(old);
      old.gone = false;
      patch(old, tr);
    } else waiting.set(tr.id, tr);
  }
}

// reading reports whether the reader is at the table: the order stays as it is meanwhile.
function reading() {
  const selection = getSelection();
  return body.contains(document.activeElement) || (!selection.isCollapsed && table.contains(selection.anchorNode)) ||
    (performance.now() - moved < 60_000 && (body.matches(':hover') || body.getBoundingClientRect().top < 0));
}
for (const event of ['pointermove', 'wheel', 'scroll', 'keydown', 'touchmove']) {
  addEventListener(event, () => { moved = performance.now(); }, { passive: true });
}

// differences returns the rows that are not in their place. Calm ones count only if all is true.
function differences(all) {
  const due = all || !full() ? () => true : (tr) => !calm(tr);
  const rows = [...body.rows];
  return {
    remove: rows.filter((tr) => tr.gone && due(tr)),
    insert: [...waiting.values()].filter(due),
    move: rows.filter((tr) => !tr.gone && tr.placed !== order(tr) && (all || !calm(tr) || tr.placed[0] !== tr.dataset.place[0])),
  };
}

// settle brings the table into the order of the daemon.
function settle(all) {
  const { remove, insert, move } = differences(all);
  for (const tr of remove) tr.remove();
  for (const tr of insert) {
    waiting.delete(tr.id);
    body.append(tr);
    tick(tr);
    place(tr);
    if (settled) flash(tr);
  }
  for (const tr of [...insert, ...move]) tr.placed = order(tr);
  if (!insert.length && !move.length) return;
  [...body.rows].sort((a, b) => (a.placed < b.placed ? -1 : 1))
    .forEach((tr, i) => { if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i]); });
}

// arrange settles, or offers it to the reader.
function arrange() {
  if (!reading()) {
    const all = now() - settled > 5000;
    settle(all);
    if (all) settled = now();
  }
  const n = Object.values(differences(false)).flat().length;
  reorder.hidden = !n;
  const text = `${n.toLocaleString('en-US')} ${n === 1 ? 'change' : 'changes'}, reorder`;
  if (n && reorder.textContent !== text) reorder.textContent = text;
  document.getElementById('none').hidden = body.rows.length > 0;
}

// The stream. EventSource neither shows heartbeats nor tries again after an error status.
const silence = 25_000; // without a heartbeat for that long, the connection is dead
const unseen = 30_000; // a hidden page gives its connection back: browsers allow six for each host

let last = '', failures = 0, controller = null, retry = 0, hide = 0;

async function connect() {
  clearTimeout(retry);
  controller?.abort();
  const mine = controller = new AbortController();
  const silent = () => mine.abort(new Error('the daemon is silent'));
  let watchdog = setTimeout(silent, silence), reason = 'the daemon closed it';
  try {
    const answer = await fetch(at(table.dataset.events), { signal: mine.signal, cache: 'no-store', headers: last ? { 'Last-Event-ID': last } : {} });
    if (!answer.ok) throw new Error(`${answer.status} ${(await answer.json().catch(() => ({}))).error ?? answer.statusText}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = '', chunk; !(chunk = await reader.read()).done;) {
      clearTimeout(watchdog);
      watchdog = setTimeout(silent, silence);
      const events = (rest + chunk.value).split('\n\n');
      rest = events.pop();
      events.forEach(receive);
      connected();
      if (events.length) say(true, 'live');
      failures = 0;
    }
  } catch (error) {
    reason = error.message;
  }
  clearTimeout(watchdog);
  if (controller !== mine) return;
  const seconds = Math.min(2 ** failures++, 15);
  lost(reason);
  say(false, `not live, next attempt in ${seconds}s`);
  retry = setTimeout(connect, 1000 * (seconds + Math.random()));
}

function receive(event) {
  const data = [];
  for (const text of event.split('\n')) {
    if (text.startsWith('id: ')) last = text.slice(4);
    if (text.startsWith('data: ')) data.push(text.slice(6));
    if (text.startsWith(': ')) setNow(text.slice(2));
  }
  if (!data.length) return;
  update(new DOMParser().parseFromString(data.join('\n'), 'text/html'));
}

function say(on, text) {
  arrange();
  if (on && document.querySelector('#notices .stale')) {
    on = false;
    text = 'not live: no connection to etcd';
  }
  table.classList.toggle('stale', !on);
  live.className = on ? 'on' : 'off';
  if (live.textContent !== text) live.textContent = text;
}

function leavePage() {
  clearTimeout(retry);
  const old = controller;
  controller = null;
  old?.abort();
}

if (limit) {
  for (const tr of body.rows) tr.placed = order(tr);
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hide);
    if (document.hidden) hide = setTimeout(leavePage, unseen);
    else if (!controller) connect();
  });
  addEventListener('pagehide', leavePage);
  addEventListener('pageshow', (event) => { if (event.persisted) connect(); });
  addEventListener('online', () => { if (!document.hidden) connect(); });
  if (!document.hidden) connect();
  setInterval(() => { if (last && !document.hidden) arrange(); }, 1000);
  reorder.addEventListener('click', (event) => {
    settle(true);
    settled = now();
    arrange();
    if (event.detail === 0) body.querySelector('a')?.focus(); // by keyboard, and the button is hidden now
  });
}
document.querySelector('form.filter').addEventListener('formdata', ({ formData }) => {
  for (const [name, value] of [...formData]) if (!value || (name === 'limit' && value === '100')) formData.delete(name);
});
