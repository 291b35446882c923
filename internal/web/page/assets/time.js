// Keeps the times of a page up to date, according to the clock of the daemon:
// <time datetime="…" data-tick="relative|since"> counts, <time data-zone="clock|full|exact"> shows
// the viewer's zone or UTC.

const arrived = performance.getEntriesByType('navigation')[0]?.responseStart ?? 0;
let base = Date.parse(document.body.dataset.now) - arrived;

// now returns the daemon's time, in ms. It does not depend on the clock of this machine.
export const now = () => base + performance.now();

// setNow tells the daemon's time at this moment.
export const setNow = (iso) => { base = Date.parse(iso) - performance.now(); };

const two = (n) => String(n).padStart(2, '0');

// duration formats ms in the two largest units, as the daemon does.
function duration(ms) {
  const s = Math.round(Math.abs(ms) / 1000);
  const sign = ms < 0 && s > 0 ? '-' : '';
  if (s < 60) return `${sign}${s}s`;
  if (s < 3600) return `${sign}${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${sign}${Math.floor(s / 3600)}h${two(Math.floor(s % 3600 / 60))}m`;
  return `${sign}${Math.floor(s / 86400)}d${two(Math.floor(s % 86400 / 3600))}h`;
}

function relative(ms) {
  const text = duration(ms);
  if (text === '0s') return 'now';
  return ms > 0 ? `in ${text}` : `${text.slice(1)} ago`;
}

// tick updates the times below an element that count.
export function tick(root = document) {
  const at = now();
  for (const time of root.querySelectorAll('time[data-tick]')) {
    const ms = Date.parse(time.dateTime) - at;
    const text = time.dataset.tick === 'since' ? duration(-ms) : relative(ms);
    if (time.textContent === text) continue;
    time.textContent = text;
    const soon = time.dataset.tick === 'relative' && ms > 0 && ms < 60000;
    if (soon) time.className = 'soon';
    else time.removeAttribute('class');
  }
}

const viewers = Intl.DateTimeFormat().resolvedOptions().timeZone;
let zone = viewers;
try {
  if (localStorage.getItem('zone') === 'UTC') zone = 'UTC';
} catch { /* storage may be forbidden */ }

const format = (timeZone) => new Intl.DateTimeFormat('en', {
  timeZone, hourCycle: 'h23', year: 'numeric', month: '2-digit', day: '2-digit',
  hour: '2-digit', minute: '2-digit', second: '2-digit',
});
const formats = { UTC: format('UTC'), [viewers]: format(viewers) };

// parts returns date and time of a moment in a zone.
function parts(ms, timeZone) {
  const p = Object.fromEntries(formats[timeZone].formatToParts(ms).map((part) => [part.type, part.value]));
  return { date: `${p.year}-${p.month}-${p.day}`, time: `${p.hour}:${p.minute}:${p.second}` };
}

const full = (ms, timeZone) => {
  const p = parts(ms, timeZone);
  return `${p.date} ${p.time}`;
};

// place shows the times below an element in the zone of the viewer's choice.
export function place(root = document) {
  const today = parts(now(), zone).date;
  for (const time of root.querySelectorAll('time[data-zone]')) {
    const ms = Date.parse(time.dateTime);
    const p = parts(ms, zone);
    let text = full(ms, zone);
    if (time.dataset.zone === 'exact') text += `.${String(ms % 1000).padStart(3, '0')}`;
    if (time.dataset.zone === 'clock') text = p.date === today ? p.time : `${p.date} ${p.time.slice(0, 5)}`;
    if (time.textContent !== text) time.textContent = text;
  }
}

// What names the zone in use. Where the viewer's is another than UTC, a button changes it.
const named = document.getElementById('zone');
if (viewers !== 'UTC') {
  const button = document.createElement('button');
  const label = () => {
    button.textContent = `Times: ${zone}`;
    button.title = zone === 'UTC' ? `Show times in ${viewers}` : 'Show times in UTC';
  };
  button.type = 'button';
  button.id = 'zone';
  button.addEventListener('click', () => {
    zone = zone === 'UTC' ? viewers : 'UTC';
    try { localStorage.setItem('zone', zone); } catch { /* only for this page, then */ }
    label();
    place();
  });
  label();
  named.replaceWith(button);
}

// UTC, and the viewer's zone, where the pointer is.
document.addEventListener('pointerover', (event) => {
  const time = event.target.closest?.('time');
  if (!time) return;
  const ms = Date.parse(time.dateTime);
  time.title = `${full(ms, 'UTC')} UTC${viewers === 'UTC' ? '' : `\n${full(ms, viewers)} ${viewers}`}`;
});

tick();
place();
setInterval(() => { if (!document.hidden) tick(); }, 1000);
document.addEventListener('visibilitychange', () => tick());
