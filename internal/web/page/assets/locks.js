// The table of the dashboard, live.

import { clock, count, element, line, link, sentence, when } from './dom.js';
import { notice, show } from './status.js';
import { follow } from './stream.js';
import { now, place, setNow, tick } from './time.js';

const table = document.getElementById('locks');
const body = table.tBodies[0];
const reorder = document.getElementById('reorder');
const live = document.getElementById('live');
const limit = Number(table.dataset.limit);
const filter = new URLSearchParams([...new URLSearchParams(location.search)].filter(([name, value]) => value && name !== 'after'));
const filtered = ['state', 'q', 'owner', 'hostname'].some((name) => filter.has(name));

const locks = new Map(); // name → lock, as the daemon sees the window
const rows = new Map(); // name → {tr, lock, place: the urgency that gave the row its place}
const changed = new Set(); // names whose row is to be filled
let matched = 0, loaded = false, moved = 0, scheduled = false, settled = 0;

// wanted returns the query with one parameter replaced.
function wanted(name, value) {
  const query = new URLSearchParams(filter);
  query.set(name, value);
  query.sort();
  return `?${query}`;
}

// row returns what templates/locks.html has for a lock.
function row(l) {
  const of = (iso) => (iso ? Date.parse(iso) - 1000 * (l.clock_offset ?? 0) : null);
  const small = (...children) => element('small', {}, ...children);
  const timed = (kind, ms) => [when(kind, ms), ms === null ? '' : small(clock(ms))];
  // Due much later than its deadline, or whatever its deadline is.
  const awaited = l.due && (l.state === 'orphaned' || (l.state !== 'held' && Date.parse(l.due) - (of(l.auto_unlock_at) ?? 0) > 10_000));
  let unlock = timed('relative', of(l.auto_unlock_at));
  if (awaited) unlock = [unlock[0], small('due ', when('relative', Date.parse(l.due)))];
  return element('tr', {},
    element('td', {}, element('span', { class: `state ${l.state}` }, l.state)),
    element('th', { scope: 'row' }, element('a', { href: link(l.name) }, line(l.name)), l.explanation && small(sentence(l.explanation))),
    element('td', {}, line(l.purpose), l.status && small(line(l.status))),
    element('td', {}, l.owner && element('a', { href: wanted('owner', l.owner) }, line(l.owner)),
      l.hostname && small(element('a', { href: wanted('hostname', l.hostname) }, line(l.hostname)))),
    element('td', {}, ...timed('since', of(l.locked_at))),
    element('td', {}, ...timed('relative', of(l.alert_at))),
    element('td', {}, ...(l.due ? unlock : ['never'])));
}

// fill shows a lock in an existing row, and keeps the focus where it is.
function fill(tr, l) {
  const fresh = row(l);
  tick(fresh);
  place(fresh);
  [...fresh.cells].forEach((cell, i) => {
    const old = tr.cells[i];
    if (old.innerHTML === cell.innerHTML) return;
    const focus = [...old.querySelectorAll('a')].indexOf(document.activeElement);
    old.replaceChildren(...cell.childNodes);
    if (focus >= 0) old.querySelectorAll('a')[focus]?.focus({ preventScroll: true });
  });
}

function flash(tr) {
  tr.classList.remove('changed');
  requestAnimationFrame(() => tr.classList.add('changed'));
}

// reading reports whether somebody is at the table: the order stays as it is meanwhile.
function reading() {
  const selection = getSelection();
  return body.contains(document.activeElement) || (!selection.isCollapsed && table.contains(selection.anchorNode)) ||
    (performance.now() - moved < 60_000 && (body.matches(':hover') || body.getBoundingClientRect().top < 0));
}
for (const event of ['pointermove', 'wheel', 'scroll', 'keydown', 'touchmove']) {
  addEventListener(event, () => { moved = performance.now(); }, { passive: true });
}

// calm reports whether a lock can wait for its place: one that is held changes its place with
// each renewal, and moves through a full window whenever others are renewed.
const calm = (l) => l.state === 'held';

// differences returns what of the table is not in its place. Calm differences count only if all
// is true.
function differences(all) {
  const full = locks.size >= limit;
  const remove = [], insert = [], move = [];
  for (const [name, r] of rows) if (!locks.has(name) && (all || !full || !calm(r.lock))) remove.push(name);
  for (const [name, l] of locks) {
    const r = rows.get(name);
    if (!r) {
      if (all || !full || !calm(l)) insert.push(name);
    } else if (r.place !== l.urgency && (all || !calm(l) || r.place[0] !== l.urgency[0])) move.push(name);
  }
  return { remove, insert, move };
}

// settle brings the table into the order of the daemon.
function settle(all) {
  const { remove, insert, move } = differences(all);
  if (!remove.length && !insert.length && !move.length) return;
  for (const name of remove) {
    rows.get(name).tr.remove();
    rows.delete(name);
  }
  for (const name of insert) {
    const l = locks.get(name), tr = row(l);
    tick(tr);
    place(tr);
    rows.set(name, { tr, lock: l, place: l.urgency });
    if (settled) flash(tr);
  }
  for (const name of move) rows.get(name).place = locks.get(name).urgency;
  const order = [...rows.values()].sort((a, b) => (a.place < b.place ? -1 : 1));
  order.forEach(({ tr }, i) => { if (body.children[i] !== tr) body.insertBefore(tr, body.children[i] ?? null); });
}

// render brings the page up to date, at most once for each frame.
function render() {
  scheduled = false;
  for (const name of changed) {
    const r = rows.get(name), l = locks.get(name);
    if (!r) continue;
    if (l) {
      if (r.lock.state !== l.state) flash(r.tr);
      fill(r.tr, l);
      r.lock = l;
    } else if (locks.size < limit || !calm(r.lock)) {
      r.tr.cells[0].replaceChildren(element('span', { class: 'state gone' }, 'gone'));
    }
  }
  changed.clear();
  arrange();
  document.getElementById('shown').textContent = `${count(locks.size)} of ${count(matched)} ${filtered ? 'locks that match' : 'locks'}`;
  document.getElementById('none').hidden = matched > 0;
}

// arrange settles, or offers it to the reader.
function arrange() {
  if (!reading()) {
    const all = now() - settled > 5000;
    settle(all);
    if (all) settled = now();
  }
  const { remove, insert, move } = differences(false);
  const n = remove.length + insert.length + move.length;
  reorder.hidden = !n;
  const text = `${count(n)} ${n === 1 ? 'change' : 'changes'}, reorder`;
  if (n && reorder.textContent !== text) reorder.textContent = text;
}

function schedule() {
  if (!scheduled) requestAnimationFrame(render);
  scheduled = true;
}

// A hidden page gets no frames. The window bounds what collects meanwhile.
const events = {
  reset(e) {
    for (const name of locks.keys()) changed.add(name);
    locks.clear();
    for (const l of e.locks) events.lock({ name: l.name, lock: l });
    matched = e.matched;
    if (!loaded) adopt();
    loaded = true;
    schedule();
  },
  lock(e) {
    locks.set(e.name, e.lock);
    changed.add(e.name);
    schedule();
  },
  gone(e) {
    locks.delete(e.name);
    changed.add(e.name);
    schedule();
  },
  matched(e) {
    matched = e.matched;
    schedule();
  },
  status(e) {
    setNow(e.status.now);
    show(e.status);
    tick();
    place();
  },
};

// adopt takes over the rows that the daemon has rendered.
function adopt() {
  const links = new Map([...body.rows].map((tr) => [tr.querySelector('a').getAttribute('href'), tr]));
  for (const [name, l] of locks) {
    const tr = links.get(link(name));
    if (!tr) continue;
    rows.set(name, { tr, lock: l, place: l.urgency });
    links.delete(link(name));
  }
  for (const tr of links.values()) tr.remove();
}

let lost = null; // {since, item}, while there is no connection

const connection = {
  open() {
    lost?.item.remove();
    lost = null;
    table.classList.remove('stale');
    live.className = 'on';
    live.textContent = 'live';
  },
  lost(reason, seconds, silent) {
    const since = lost?.since ?? now() - silent;
    lost?.item.remove();
    lost = { since, item: notice('bad', 'The connection to unlocker is lost:', reason, 'the list is as of', new Date(since).toISOString()) };
    document.getElementById('lost').append(lost.item);
    place(lost.item);
    table.classList.add('stale');
    live.className = 'off';
    live.textContent = `not live, next attempt in ${seconds}s`;
  },
  event(e) { events[e.type]?.(e); },
};

if (limit) {
  const query = new URLSearchParams(filter);
  query.set('limit', limit);
  follow(`${document.body.dataset.prefix}/api/v1/events?${query}`, connection);
  setInterval(() => { if (loaded && !document.hidden) arrange(); }, 1000);
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
