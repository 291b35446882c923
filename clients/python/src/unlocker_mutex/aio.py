"""The locks of unlocker_mutex for asyncio.

    client = aio.Client(["https://etcd-1:2379", "https://etcd-2:2379"], ca_file="ca.pem")
    async with client.lock("billing/invoices", timeout=30) as lock:
        async for invoice in invoices:
            lock.check()                              # raises Lost
            await send(invoice, fencing_token=lock.token)
            await lock.alive()

Names, options, errors and guarantees are those of unlocker_mutex. Each call runs in a thread of its own
for as long as it takes, waits included. A canceled call ends at once: a lock that it has taken, or takes
late, is released in the background, and a canceled unlock or alive is completed there.

A Client may be used by several event loops, and its locks by several tasks. The stacks in etcd are those of
the thread of the event loop, which show a coroutine only while it runs.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterable, List, Mapping, Optional, Sequence, Tuple, Type, TypeVar

import unlocker_mutex
from unlocker_mutex import Canceled, Held, Holder, Lost, MutexError, Refused, Removal, Unreachable

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _Options(TypedDict, total=False):
        user: str
        password: str
        ca_file: Optional[str]
        cert_file: Optional[str]
        key_file: Optional[str]
        server_name: Optional[str]
        prefix: str
        owner: str
        request_timeout: float
        audit_prefix: str
        ask_prefix: str
        waiters_prefix: str
        release_on_sigterm: bool

    class _Terms(TypedDict, total=False):
        expect: Optional[float]
        patience: Optional[float]
        max_hold: Optional[float]
        owner: str
        purpose: str
        metadata: Optional[Mapping[str, str]]
        backtrace: bool

    class _SlotTerms(_Terms, total=False):
        slots: Optional[int]


__all__ = ["Canceled", "Client", "Held", "Holder", "Lock", "Lost", "MutexError", "Refused", "Removal", "Unreachable"]

_Result = TypeVar("_Result")


async def _run(call: Callable[[], _Result], cancel: Callable[[], None] = lambda: None, undo: Callable[[_Result], None] = lambda _: None) -> _Result:
    """Runs the call in a thread. Where its result reaches nobody, since the caller was canceled, it is undone."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_Result] = loop.create_future()
    results: List[_Result] = []

    def done(error: Optional[BaseException]) -> None:
        if future.done():  # the caller was canceled
            undo_all()
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(results[0])

    def undo_all() -> None:
        while results:
            undo(results.pop())

    def run() -> None:
        error: Optional[BaseException] = None
        try:
            results.append(call())
        except BaseException as e:
            error = e
        try:
            loop.call_soon_threadsafe(done, error)
        except RuntimeError:  # the loop is closed
            undo_all()

    threading.Thread(target=run, name="unlocker-mutex-aio", daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        cancel()
        future.cancel()
        undo_all()  # canceled between the result and its use
        raise


class Lock:
    """A lock that is held until it is released or lost, as unlocker_mutex.Lock. An asynchronous context manager that releases it."""

    def __init__(self, lock: unlocker_mutex.Lock) -> None:
        self._lock = lock
        self.name, self.uuid, self.token = lock.name, lock.uuid, lock.token

    @property
    def lost(self) -> Optional[Lost]:
        """Why the lock is lost or released; None while it is held. It asks the clocks, not etcd, so it costs nothing."""
        return self._lock.lost

    def check(self) -> None:
        """Raises Lost unless the lock is held. It asks the clocks, not etcd, so it costs nothing."""
        self._lock.check()

    async def alive(self, status: Optional[str] = None, *, expect: Optional[float] = None, patience: Optional[float] = None) -> None:
        """Moves the deadlines forward, as unlocker_mutex.Lock.alive; seconds. Raises Lost, Unreachable or Refused."""
        thread = threading.get_ident()
        try:
            await _run(lambda: self._lock.alive(status, expect=expect, patience=patience))
        finally:
            self._lock._thread = thread

    async def unlock(self) -> None:
        """Releases the lock. Raises Lost if it was lost before, and Unreachable or Refused if that is not known."""
        await _run(self._lock.unlock)

    async def __aenter__(self) -> Lock:
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        await _run(lambda: self._lock.__exit__(kind, error, trace))


class _Taking:
    """What Client.lock returns: to be awaited, or entered."""

    def __init__(self, client: unlocker_mutex.Client, name: str, timeout: Optional[float], terms: _SlotTerms) -> None:
        self._arguments = client, name, timeout, terms
        self._lock: Optional[Lock] = None

    async def _take(self) -> Lock:
        client, name, timeout, terms = self._arguments
        lock, cancel = client._new([name], **terms)[0], unlocker_mutex.Cancel()
        await _run(lambda: client._take(lock, timeout, cancel), cancel, client._background.release)
        return Lock(unlocker_mutex._hold([lock])[0])

    def __await__(self) -> Generator[Any, None, Lock]:
        return self._take().__await__()

    async def __aenter__(self) -> Lock:
        self._lock = await self._take()
        return self._lock

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._lock:
            await self._lock.__aexit__(kind, error, trace)


class Client:
    """Takes locks, as unlocker_mutex.Client, with the same options."""

    def __init__(self, endpoints: Sequence[str] = ("127.0.0.1:2379",), **options: Unpack[_Options]) -> None:
        self._client = unlocker_mutex.Client(endpoints, **options)

    def lock(self, name: str, *, timeout: Optional[float] = None, **terms: Unpack[_SlotTerms]) -> _Taking:
        """Takes a lock, to be awaited or entered by async with, and waits for it for up to timeout seconds.

        None is without limit, 0 is try_lock. The options are those of unlocker_mutex.Client.lock, in seconds.
        Raises Held with the holder when timeout is over, Unreachable if etcd does not answer then, and
        Refused if it does not accept the request.
        """
        return _Taking(self._client, name, timeout, terms)

    def try_lock(self, name: str, **terms: Unpack[_SlotTerms]) -> _Taking:
        """Takes a lock if it is free, as lock does, or raises Held with the holder."""
        return _Taking(self._client, name, 0, terms)

    async def try_lock_all(self, names: Iterable[str], **terms: Unpack[_Terms]) -> Tuple[List[Lock], List[Held]]:
        """Takes those of the locks that are free, about a hundred with each transaction, and says who holds the others.

        The options are those of lock, in seconds. Raises Unreachable or Refused; then it holds none of them.
        """
        client, locks = self._client, self._client._new(names, **terms)

        def release(result: Tuple[List[unlocker_mutex.Lock], List[Held]]) -> None:
            for lock in result[0]:
                client._background.release(lock)

        taken, held = await _run(lambda: client._take_all(locks), undo=release)
        return [Lock(lock) for lock in unlocker_mutex._hold(taken)], held

    async def unlock_all(self, locks: Sequence[Lock]) -> None:
        """Releases several locks as Lock.unlock does, in few transactions. Raises the first Lost, or Unreachable or Refused."""
        await _run(lambda: self._client.unlock_all([lock._lock for lock in locks]))

    def close(self) -> None:
        """Closes the idle connections. It releases no locks, and the client may be used again."""
        self._client.close()
