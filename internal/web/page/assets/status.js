// What the answer of /api/v1/status changes on the page.

import { clock, count, element, line, link, sentence, when } from './dom.js';

// notices returns what is wrong, or other than usual: [level, title, text, word, ISO time].
// notices.go has the same lines, for pages without scripts.
function* notices(s) {
  if (!s.ready) yield ['bad', 'The list is not complete:', 'the daemon has not read all locks and pauses yet.'];
  if (!s.etcd.up) yield ['bad', 'The connection to etcd is lost.', s.etcd.error, 'the list is as of', s.etcd.progress];
  const levels = { dry_run: 'info', starting: 'warn', paused: 'warn' };
  for (const h of s.holds) yield [levels[h.hold] ?? 'bad', 'No lock is removed:', h.reason, 'since', h.since];
  if (s.mode === 'off') yield ['info', 'No lock is removed:', 'reaper.mode is off'];
  for (const p of s.pauses) {
    if (p.match) yield ['warn', 'Removals are paused:', `${p.match}, by ${p.by}: ${p.reason}`, 'until', p.until];
  }
  if (s.holds.length && s.backlog) yield ['warn', `Due and not removed: ${count(s.backlog)}`];
}

// notice returns a line of the banner.
export function notice(level, title, text, word, iso) {
  const item = element('li', { class: level }, element('b', {}, title), ' ', sentence(text));
  if (iso) item.append(' ', element('span', {}, `(${word} `, clock(Date.parse(iso)), ')'));
  return item;
}

// show updates the banner, the counts and the near misses.
export function show(s) {
  const list = document.getElementById('notices');
  replace(list, [...notices(s)].map((n) => notice(...n)));
  let total = 0;
  for (const [state, n] of Object.entries(s.locks)) {
    total += n;
    const cell = document.getElementById(`count-${state}`);
    cell.textContent = count(n);
    cell.parentElement.classList.toggle('zero', !n);
  }
  document.getElementById('total').textContent = count(total);
  const alarming = ['expired', 'overdue'].filter((state) => s.locks[state]).map((state) => `${s.locks[state]} ${state}`);
  document.title = `${alarming.length ? `(${alarming.join(', ')}) ` : ''}Locks · unlocker`;
  const near = document.getElementById('near');
  near.hidden = !s.near_misses.length;
  replace(near.querySelector('tbody'), s.near_misses.map((m) => element('tr', {},
    element('th', { scope: 'row' }, element('a', { href: link(m.name) }, line(m.name))),
    element('td', {}, line(m.owner), element('small', {}, line(m.hostname))),
    element('td', {}, `${Math.round(100 * m.margin)} %`), element('td', {}, String(m.renewals)),
    element('td', {}, when('relative', Date.parse(m.at))))));
}

// replace exchanges the children of an element if they differ: a screen reader reads what is new.
function replace(parent, children) {
  const kind = (nodes) => [...nodes].map((node) => node.outerHTML.replace(/(<time[^>]*>)[^<]*/g, '$1').replace(/ (class="soon"|title="[^"]*")/g, '')).join();
  if (kind(parent.children) !== kind(children)) parent.replaceChildren(...children);
}
