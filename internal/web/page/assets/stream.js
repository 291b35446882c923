// Follows a stream of server-sent events. EventSource neither sees heartbeats nor tries again
// after an error status, so this reads the stream itself.

const silence = 25_000; // without a heartbeat for that long, the connection is dead
const unseen = 30_000; // a hidden page gives its connection back: browsers allow six for each host

// follow calls on.event(data) for each event, on.open() when a connection is up, and
// on.lost(reason, seconds, silent) when there is none: it is tried again after so many seconds,
// and the last sign of it is so many milliseconds old.
export function follow(url, on) {
  let last = '', failures = 0, controller = null, timer = 0, hide = 0, heard = performance.now();

  async function connect() {
    clearTimeout(timer);
    controller?.abort();
    const mine = controller = new AbortController();
    let watchdog = 0;
    const alive = () => {
      heard = performance.now();
      clearTimeout(watchdog);
      watchdog = setTimeout(() => mine.abort(new Error('the daemon is silent')), silence);
    };
    let reason = 'the daemon closed it';
    try {
      watchdog = setTimeout(() => mine.abort(new Error('the daemon is silent')), silence);
      const answer = await fetch(url, {
        signal: mine.signal, cache: 'no-store',
        headers: { Accept: 'text/event-stream', ...(last && { 'Last-Event-ID': last }) },
      });
      if (!answer.ok) throw new Error(await refusal(answer));
      alive();
      on.open();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        alive();
        const blocks = (rest + value).split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) receive(block);
        failures = 0;
      }
    } catch (error) {
      reason = error.message;
    } finally {
      clearTimeout(watchdog);
    }
    if (controller === mine) again(reason);
  }

  function receive(block) {
    const data = [];
    for (const text of block.split('\n')) {
      if (text.startsWith('id: ')) last = text.slice(4);
      if (text.startsWith('data: ')) data.push(text.slice(6));
    }
    if (data.length) on.event(JSON.parse(data.join('\n')));
  }

  function again(reason) {
    const seconds = Math.min(2 ** failures++, 15);
    on.lost(reason, seconds, performance.now() - heard);
    timer = setTimeout(connect, 1000 * (seconds + Math.random()));
  }

  function leave() {
    clearTimeout(timer);
    const old = controller;
    controller = null;
    old?.abort();
  }

  document.addEventListener('visibilitychange', () => {
    clearTimeout(hide);
    if (document.hidden) hide = setTimeout(leave, unseen);
    else if (!controller) connect();
  });
  addEventListener('pagehide', leave);
  addEventListener('pageshow', (event) => { if (event.persisted) connect(); });
  addEventListener('online', () => { if (!document.hidden) connect(); });
  if (!document.hidden) connect();
}

// refusal returns what the daemon, or a proxy, said.
async function refusal(answer) {
  let words = '';
  try { words = (await answer.json()).error; } catch { /* not from the daemon */ }
  return `${answer.status} ${words || answer.statusText}`;
}
