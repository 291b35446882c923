// What users can do to many locks: show which a pattern selects, and remove these.
import { at, refresh } from './live.js';

const form = (id) => document.getElementById(id);
const outcome = document.getElementById('outcome');
const result = document.getElementById('result');
let what = null; // the request whose answer is shown, with its digest
let total = 0;

// say tells an outcome at the top of the page.
function say(text, good) {
  outcome.hidden = !text;
  outcome.className = good ? 'good' : 'bad';
  outcome.textContent = text;
  if (text) outcome.scrollIntoView({ block: 'nearest' });
}

const shown = (text) => JSON.stringify(text).slice(1, -1).replace(/[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
  (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);

function item(name, text) {
  const li = document.createElement('li');
  const bdi = document.createElement('bdi');
  bdi.textContent = shown(name);
  li.append(bdi, ` ${text}`);
  return li;
}

const send = (path, method, body) => fetch(at(path), { method, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

async function refusal(response) {
  return `Nothing was done. The daemon says: ${(await response.json().catch(() => ({}))).error ?? response.status}`;
}

const busy = (of, on) => { of.querySelector('button').disabled = on; };

async function select(event) {
  event.preventDefault();
  say('');
  form('remove').hidden = true;
  result.hidden = true;
  const { match, silent } = form('select').elements;
  const asked = { match: match.value.trim(), silent: silent.checked };
  const response = await send(form('select').getAttribute('action'), 'POST', asked);
  if (!response.ok) {
    say(await refusal(response));
    return;
  }
  const { locks, left, digest } = await response.json();
  total = locks.length;
  what = { ...asked, digest };
  document.getElementById('selected').textContent = `${total.toLocaleString('en-US')} ${total === 1 ? 'lock' : 'locks'} ${asked.silent ? 'of silent holders ' : ''}` +
    `would be removed${left ? `. ${left} more match and stay: nobody holds them, or their names are too long` : ''}.`;
  document.getElementById('locks-selected').replaceChildren(...locks.map((l) => item(l.name, [l.state !== 'held' && l.state, l.owner && `held by ${shown(l.owner)}`, l.hostname && `on ${shown(l.hostname)}`].filter(Boolean).join(' '))));
  form('remove').reset();
  check();
  form('remove').hidden = !total;
  if (!total) say(`No lock matches that is held${asked.silent ? ' by a silent holder' : ''}.`);
}

function check() {
  const { confirm, reason } = form('remove').elements;
  form('remove').querySelector('button').disabled = !total || confirm.value.trim() !== String(total) || !reason.value.trim();
  reason.setCustomValidity(new TextEncoder().encode(reason.value).length > 512 ? 'The record has room for 512 bytes.' : '');
}

function progress(line) {
  const [bar, text] = result.querySelectorAll('progress, span');
  bar.max = line.total;
  bar.value = line.total - line.not_tried;
  text.textContent = `${line.removed} of ${line.total} removed, ${line.refused} refused, ${line.unknown} unknown, ${line.not_tried} not tried`;
  if (line.name && line.outcome !== 'removed') result.querySelector('ul').append(item(line.name, `${line.outcome}: ${line.error}`));
}

async function remove(event) {
  event.preventDefault();
  const request = { ...what, reason: form('remove').elements.reason.value.trim() };
  what = null;
  form('remove').hidden = true;
  say('');
  const response = await send(form('remove').getAttribute('action'), 'POST', request);
  if (!response.ok) {
    say(`${await refusal(response)}. Show the locks again.`);
    return;
  }
  result.hidden = false;
  result.querySelector('ul').replaceChildren();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let last = null;
  for (let rest = '', chunk; !(chunk = await reader.read()).done;) {
    const lines = (rest + chunk.value).split('\n');
    rest = lines.pop();
    for (const line of lines) progress(last = JSON.parse(line));
  }
  if (!last || last.name) throw new Error('the answer ended early');
  if (last.removed === last.total) say(`You removed ${last.removed} locks.`, true);
  else say(`${last.removed} of ${last.total} locks were removed. ${last.unknown ? 'Of some it is not known: etcd did not answer. ' : ''}${last.error ?? ''}`);
}

async function pause(event) {
  event.preventDefault();
  const { match, reason, for: lasts } = form('pause').elements;
  const response = await send(form('pause').getAttribute('action'), 'POST', { match: match.value.trim(), for: lasts.value, reason: reason.value.trim() });
  if (!response.ok) return say(await refusal(response));
  say(`Paused: ${match.value.trim() || 'all locks'}.`, true);
  form('pause').reset();
  return refresh();
}

document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-resume]');
  if (!button) return;
  button.disabled = true;
  const { match, resume } = button.dataset;
  try {
    const response = await send(`${resume}?${new URLSearchParams(match ? { match } : { all: 'true' })}`, 'DELETE');
    say(response.ok ? `Resumed: ${match || 'all locks'}. What is due is removed at once.` : await refusal(response), response.ok);
  } catch (error) {
    say(`No answer (${error.message}): it may be paused or not.`);
  }
  button.disabled = false;
  refresh();
});

// run calls an action, and says if it is not known what it did.
const run = (action) => async (event) => {
  const of = event.target;
  busy(of, true);
  try {
    await action(event);
  } catch (error) {
    say(`The answer is not whole (${error.message}): what was done is not known. /forced shows what was removed.`);
  }
  busy(of, false);
  check();
};

form('pause').addEventListener('submit', run(pause));
form('select').addEventListener('submit', run(select));
form('remove').addEventListener('submit', run(remove));
form('remove').addEventListener('input', check);
