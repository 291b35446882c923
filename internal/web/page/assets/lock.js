// What a reader can do on the page of a lock: copy, ask its holder, and remove the lock.
import { at, refresh } from './live.js';

// copy works without HTTPS, too, where there is no navigator.clipboard.
async function copy(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  const marked = getSelection();
  try {
    await navigator.clipboard.writeText(element.textContent);
  } catch {
    marked.removeAllRanges();
    marked.addRange(range);
    const copied = document.execCommand('copy');
    if (copied) marked.removeAllRanges();
    return copied;
  }
  return true;
}

document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  button.textContent = await copy(document.getElementById(button.dataset.copy)) ? 'Copied' : 'Press Ctrl+C';
  setTimeout(() => { button.textContent = 'Copy'; }, 2000);
});

document.addEventListener('input', (event) => {
  const form = event.target.closest('#unlock');
  if (!form) return;
  const { confirm, reason } = form.elements;
  form.querySelector('button').disabled = confirm.value !== form.dataset.name || !reason.value.trim();
  reason.setCustomValidity(new TextEncoder().encode(reason.value).length > 512 ? 'The record has room for 512 bytes.' : '');
});

// say tells the outcome above the lock, where it stays when the lock is gone.
function say(text, good) {
  const outcome = document.getElementById('outcome');
  outcome.hidden = false;
  outcome.className = good ? 'good' : 'bad';
  outcome.textContent = text;
  outcome.scrollIntoView({ block: 'nearest' });
}

document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-ask]');
  if (!button) return;
  button.disabled = true;
  try {
    const response = await fetch(at(button.dataset.ask), { method: 'POST' });
    const answer = await response.json().catch(() => ({}));
    say(response.ok ? 'Its process answers: its stack and status are of now.' : `No answer: ${answer.error ?? `the daemon answers ${response.status}`}.`, response.ok);
  } catch {
    say('No answer from the daemon.');
  }
  button.disabled = false;
  refresh();
});

const outcomes = {
  401: 'Nothing was removed: the proxy did not say who you are. Sign in again.',
  403: 'Nothing was removed: removing locks from the page is turned off, or the request seems to come from another site.',
  404: 'Nothing was removed: there is no such lock any more. It was released or removed meanwhile.',
  409: 'Nothing was removed: the lock has another holder now, under another uuid.',
};

// otherwise is for what a request, not a lock, is refused for, and for all that leaves it open.
function otherwise(status) {
  return status < 500 || status === 503 ? 'Nothing was removed.' : `The daemon answers ${status}: the lock may or may not be removed.`;
}

document.addEventListener('submit', async (event) => {
  const form = event.target.closest('#unlock');
  if (!form) return;
  event.preventDefault();
  const button = form.querySelector('button');
  button.disabled = true;
  try {
    const response = await fetch(at(form.getAttribute('action')), {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify({ uuid: form.dataset.uuid, reason: form.elements.reason.value.trim() }),
    });
    const answer = await response.json().catch(() => ({}));
    if (response.ok) say(`You removed the lock at revision ${answer.revision}.`, true);
    else say([outcomes[response.status] ?? otherwise(response.status), answer.error].filter(Boolean).join(' The daemon says: '));
  } catch {
    say('No answer from the daemon: the lock may or may not be removed. The page shows what it is now.');
  }
  form.elements.confirm.value = '';
  refresh();
});
