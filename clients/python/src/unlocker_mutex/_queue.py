"""Waiting in order, by tickets (docs/protocol.md, "Waiting in order" and "Slots").

The queue only keeps a waiter from taking a lock: each transaction that takes one compares that there is no uuid.
"""

from __future__ import annotations

import json
import logging
import math
import os
import random
import socket
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Callable, Dict, Generator, List, Optional, Set, Tuple

from ._etcd import (
    Cancel, Canceled, MutexError, Refused, Unreachable, _Answer, _b64, _Connection, _delete, _Etcd, _get, _Json, _put, _telling, _text,
)

if TYPE_CHECKING:
    from . import Holder, Lock

_Found = Dict[str, Tuple[str, int, int]]  # see _Answer.found

_TTL = 10.0  # of the lease of tickets
_PASS = 1.0  # for which the second sees the lock free before it passes over the first
_LOOK = 0.05  # after which the second looks whether there still is a first
_PLAIN = 60.0  # for which a client that may not put tickets does without
_JITTER = 0.02  # over which waiters without tickets spread when the lock is released
_LAST = 0.2  # before the end of a wait, when a waiter reads who the holder is, if that has changed
_SILENCE = 60.0  # after which a watch without an event is replaced
_PAUSE = 0.05  # after the first failure
_LONGEST = 1.0  # pause between failures
_GROUP = 100  # slots that are read in one nested transaction


class _Lease:
    def __init__(self, id: str, granted: float) -> None:
        self.id, self.expires = id, granted + _TTL
        self.lost = Cancel()  # called when it may have expired, and when it is not kept any more; it ends watches
        self.waits = 1

    @property
    def over(self) -> bool:
        return self.lost._called.is_set()


class _Leases:
    """Has the lease of the tickets of a process: one for all its waits, which a thread keeps alive while one of them lasts. Locks have none."""

    def __init__(self, etcd: _Etcd) -> None:
        self._etcd = etcd
        self._granting = threading.Lock()
        self._mutex = threading.Lock()  # guards what follows
        self._lease: Optional[_Lease] = None

    def join(self, wanted: bool, end: float) -> Optional[_Lease]:
        """Returns the lease for a wait, which must leave it. If there is none, it asks for one, if that is wanted. Raises Refused or Unreachable."""
        lease = self._join()
        if lease or not wanted:
            return lease
        end = min(end, time.monotonic() + self._etcd._timeout)
        if not self._granting.acquire(timeout=max(0.0, end - time.monotonic())):
            raise Unreachable("etcd does not answer: there is no lease for tickets yet") from TimeoutError()  # others say more
        try:
            lease, began = self._join(), time.monotonic()
            if lease is None:
                lease = self._lease = _Lease(self._etcd.grant(_TTL, end), began)
                threading.Thread(target=self._keep, args=(lease,), name="unlocker-mutex-tickets", daemon=True).start()
            return lease
        finally:
            self._granting.release()

    def _join(self) -> Optional[_Lease]:
        with self._mutex:
            if self._lease is None or self._lease.over:
                return None
            self._lease.waits += 1
            return self._lease

    def leave(self, lease: _Lease) -> None:
        with self._mutex:
            lease.waits -= 1

    def _keep(self, lease: _Lease) -> None:
        while True:
            time.sleep(max(0.0, lease.expires - _TTL * 2 / 3 - time.monotonic()))
            began = time.monotonic()
            with self._mutex:
                if not lease.waits:
                    lease.lost()
                    return
            try:
                kept = self._etcd.keep(lease.id, lease.expires)
            except MutexError:
                kept = False
            if not kept:
                lease.lost()
                return
            lease.expires = began + _TTL


class _Waiter:
    """Takes a lock, or one slot of several, when it is free and the waiter's turn.

    It acts on what it knows of the lock and the queue as of a revision, watches one key, and reads again what the
    events do not say.
    """

    def __init__(self, lock: Lock, end: float, cancel: Cancel) -> None:
        self._lock, self._end, self._cancel = lock, end, cancel
        self._client, self._etcd, self._leases = lock._client, lock._client._etcd, lock._client._background.leases
        self._since = datetime.now(timezone.utc)
        self._names = {f"{lock._client._prefix}{name}/uuid": name for name in lock._names}
        self._tickets = lock._ticket[: -len(lock.uuid)]  # which the keys of all tickets of the name begin with
        self._fair = False  # it takes the lock only in turn; otherwise it takes what is free
        self._lease: Optional[_Lease] = None
        self._taken = False
        self._holder: Optional[Holder] = None  # the last one, once there was an answer

        # What it knows, as of the revision. At first it takes the lock to be free.
        self._revision = 0
        self._free: Set[str] = {lock.name}
        self._ticket = 0  # create_revision of its ticket, 0 if it has none
        self._queued_at = 0  # revision of the last answer that has put it
        self._before: List[str] = []  # the tickets before its own, the nearest first, at most two
        self._head = ""  # the first ticket of the name, if that is before its own

        self._freed, self._first = -math.inf, ""  # since when the lock is free, and which ticket was the first
        self._looked = False  # since then
        self._last = end - _LAST  # when it reads who the holder is
        self._pause = _PAUSE
        self._watch: Optional[Generator[Tuple[_Connection, _Json], None, None]] = None
        self._connection: Optional[_Connection] = None
        self._key = ""  # that is watched
        self._rouse()

    def take(self) -> Optional[Holder]:
        """Takes what is free, without a ticket, and returns None, or else who has it. Raises Refused or Unreachable."""
        if len(self._names) > 1:
            self._read()
        while not self._taken:
            self._attempt()
            if not self._free:
                break
        return None if self._taken else self._holder

    def wait(self) -> Optional[Holder]:
        """Takes the lock, and returns None, or who has it at the end. Raises Canceled, Refused, or, where the last attempts all failed, Unreachable."""
        failed: Optional[Unreachable] = None
        while not self._taken:
            if self._cancel._called.is_set():
                raise Canceled(f"the wait for lock {self._lock._base!r} was canceled")
            if self._holder is not None and time.monotonic() >= self._end:
                return self._holder
            try:
                self._step()
                failed = None
            except Unreachable as error:
                told = _telling(failed, error)
                if time.monotonic() >= self._end and (failed or self._holder is None):
                    raise told from told.__cause__
                failed = told
                self._rest()
        return None

    def close(self) -> None:
        """Ends the watch, and leaves the lease."""
        self._unwatch()
        if self._lease:
            self._leases.leave(self._lease)
            self._lease = None

    def _step(self) -> None:
        """Does what is due, or waits until something is."""
        now = time.monotonic()
        at, act = self._plan(now)
        if self._ticket and self._lease and self._lease.over:
            self._try()
        elif now >= at:
            act()
        elif now >= self._last:
            self._last = math.inf
            self._describe()
        elif now >= self._quiet:
            self._look()
        else:
            self._follow(min(at, self._last, self._quiet, self._end))

    def _plan(self, now: float) -> Tuple[float, Callable[[], None]]:
        """When to do what, as things are. The first takes a lock that is free. If it does not, the second does, or any that has found that out."""
        head = self._head
        if not self._free:
            self._freed = math.inf
            return math.inf, self._look
        if self._freed == math.inf or head != self._first:
            self._freed, self._first, self._looked = now, head, False
        if not self._ticket:
            return self._freed + random.uniform(0, _JITTER), self._try
        if not head:
            return now, self._try
        if self._looked:
            return self._freed + _PASS, lambda: self._pass_over(head)
        return self._freed + (_LOOK if len(self._before) == 1 else _PASS), self._look

    def _pass_over(self, head: str) -> None:
        self._try(head)
        self._freed = math.inf  # if another has passed it over, what is known is of before

    def _try(self, *over: str) -> None:
        """Takes the lock, if it is free and the waiter's turn, and deletes the tickets that are passed over. Without a ticket it queues otherwise."""
        wanted = self._lease is not None
        while not self._cancel._called.is_set():
            if not self._ticket or (self._lease and self._lease.over):
                self._ticket, self._before, self._head, over = 0, [], "", ()
                self._join(wanted)
                if len(self._names) > 1:
                    self._read()
            was = self._ticket
            try:
                self._attempt(*over)
            except Refused as refused:
                if refused.code == 7 and self._fair:
                    self._ticket = 0
                    self._unordered(refused)
                elif refused.code == 5 and self._fair and self._lease:
                    self._lease.lost()
                else:
                    raise
            else:
                if self._taken or not self._fair:
                    return
                if self._ticket:
                    if self._ticket not in (was, self._queued_at):  # an attempt without an answer has put it
                        self._look()
                    return
            wanted = True

    def _join(self, wanted: bool) -> None:
        """Gets a lease for the next attempt, if the process has one or one is wanted."""
        self._fair = time.monotonic() >= self._client._plain
        if self._lease and (not self._fair or self._lease.over):
            self._leases.leave(self._lease)
            self._lease = None
        if self._fair and self._lease is None:
            try:
                self._lease = self._leases.join(wanted, self._end)
            except Refused as refused:
                self._fair = False
                self._unordered(refused)

    def _unordered(self, refused: Refused) -> None:
        """Has the waits of the client do without tickets for a while."""
        client = self._client
        client._plain = time.monotonic() + _PLAIN
        if not client._said_plain:
            client._said_plain = True
            logging.getLogger(__package__).warning("no tickets under %s, so this process waits for locks in no order: %s", client._waiters, refused)

    def _attempt(self, *over: str) -> None:
        """Tries once to take the lock, or a slot that seems to be free, and notes the place in the queue otherwise."""
        lock = self._lock
        if self._free and lock.name not in self._free:
            lock._move(random.choice(sorted(self._free)))
        txn = lock._acquisition()
        self._queue(txn, *over)
        try:
            answer = next(self._etcd.send([txn], self._end))
        except MutexError as error:
            lock._late += error._unanswered
            raise
        holder = lock._acquired(answer)
        if len(self._names) == 1:  # it says nothing about other slots
            self._revision = answer.revision
        if holder is None:
            self._taken = True
            if answer.succeeded:
                lock._queued = lock._queued and not self._ticket and lock._late > 0
            return
        self._holder, found, key = holder, answer.found, lock._key("uuid")
        self._saw(lock.name, found[key][0] if key in found else None)
        if lock._ticket in found:
            self._ticket = found[lock._ticket][1]
        elif self._ticket or not self._fair or not self._lease:
            self._ticket = 0
        else:
            self._ticket = self._queued_at = answer.revision
            self._line(found)

    def _queue(self, txn: _Json, *over: str) -> None:
        """Has an attempt take the lock only in turn or, without a ticket, if no others wait; with a lease it puts the ticket otherwise."""
        lock = self._lock
        if not self._fair:
            return
        if self._ticket:
            there = [{"target": "VERSION", "result": "GREATER", "key": _b64(key, "surrogateescape"), "version": "0"} for key in over]
            txn["compare"] += [self._mine(), *there]  # one is passed over only once
            txn["success"] += [_delete(key) for key in (lock._ticket, *over)]
            txn["failure"].append(_get(lock._ticket, keysOnly=True))
            return
        txn["compare"].append({"target": "VERSION", "result": "EQUAL", "key": _b64(self._tickets), "rangeEnd": self._tickets_end(), "version": "0"})
        if self._lease:
            lock._queued = True
            ticket = _put(lock._ticket, self._value(), lease=self._lease.id)
            txn["failure"] += [*self._earlier(), _get(lock._ticket, keysOnly=True), ticket]

    def _tickets_end(self) -> str:
        return _b64(self._tickets[:-1] + "0")

    def _mine(self) -> _Json:
        return {"target": "CREATE", "result": "EQUAL", "key": _b64(self._lock._ticket), "createRevision": str(self._ticket)}

    def _value(self) -> str:
        def clipped(text: str) -> str:
            return text.encode("utf-8", "replace")[:250].decode("utf-8", "ignore")

        lock = self._lock
        fields = {
            "uuid": lock.uuid, "hostname": clipped(socket.gethostname()), "pid": str(os.getpid()), "slots": lock._slots, "holds": lock._holds,
            "owner": clipped(lock._terms.fields["owner"]), "purpose": clipped(lock._terms.fields["purpose"]),
            "since": self._since.isoformat(),
        }
        return json.dumps({name: value for name, value in fields.items() if value})

    def _earlier(self) -> List[_Json]:
        """Reads the last two of the tickets before its own, and the first."""
        options = {"rangeEnd": self._tickets_end(), "keysOnly": True, "sortTarget": "CREATE", "maxCreateRevision": str(max(0, self._ticket - 1))}
        return [_get(self._tickets, sortOrder=order, limit=limit, **options) for order, limit in (("DESCEND", "2"), ("ASCEND", "1"))]

    def _line(self, found: _Found) -> None:
        """Notes the tickets before its own."""
        others = [(created, key) for key, (_, created, _) in found.items() if key.startswith(self._tickets) and key != self._lock._ticket]
        keys = [key for _, key in sorted(others, reverse=True)]
        self._before, self._head = keys[:2], keys[-1] if keys else ""

    def _send(self, txn: _Json) -> _Answer:
        """Executes a transaction that only reads."""
        try:
            return next(self._etcd.send([txn], self._end))
        except MutexError as error:
            error._unanswered = 0  # which counts what may take the lock
            raise

    def _read(self) -> None:
        """Reads who holds the lock, or each slot, and the tickets before its own, if it still has one, as of one revision."""
        holders = [_get(key) for key in self._names]
        if len(holders) > _GROUP:
            holders = [{"requestTxn": {"success": holders[i : i + _GROUP]}} for i in range(0, len(holders), _GROUP)]
        txn: _Json = {"success": holders, "failure": holders}
        if self._ticket:
            txn.update(compare=[self._mine()], success=[*self._earlier(), *holders])
        answer = self._send(txn)
        found, self._revision = answer.found, answer.revision
        if self._ticket:
            self._line(found)
        if not answer.succeeded:
            self._ticket = 0
        for key, name in self._names.items():
            self._saw(name, found[key][0] if key in found else None)

    def _look(self) -> None:
        """Reads the holder and the place in the queue again."""
        if self._ticket:
            try:
                self._read()
                self._looked = len(self._before) < 2 or time.monotonic() >= self._freed + _PASS  # it watches, or has read twice
            except Refused as refused:
                if refused.code != 7:
                    raise
                self._ticket = 0
        if not self._ticket:
            self._try()
        self._rouse()

    def _rouse(self) -> None:
        self._quiet = time.monotonic() + _SILENCE * random.uniform(1, 1.25)

    def _describe(self) -> None:
        """Reads who the holder is, if only its uuid is known."""
        if self._holder is None or set(self._holder.fields) <= {"uuid"}:
            holder = self._lock._holder(self._send({"success": self._lock._reading(), "failure": []}).found)
            self._holder = holder if holder.fields else self._holder

    def _saw(self, name: str, uuid: Optional[str]) -> bool:
        """Notes who holds the lock of a name, None: it is free. Reports whether that shows the place in the queue: not where another than the one before has taken the lock."""
        lock, free = self._lock, uuid is None
        if uuid == lock.uuid:  # by an attempt without an answer, which the next one will find out
            lock._move(name)
            self._free, self._before, self._head = {name}, [], ""
            return True
        self._free.discard(name)
        if uuid is None:
            self._free.add(name)
        elif name == lock.name and (self._holder is None or self._holder.fields.get("uuid") != uuid):
            self._holder = lock._holder({lock._key("uuid"): (uuid, 0, 0)})
        if uuid is not None and self._before == [self._tickets + uuid]:
            self._before, self._head = [], ""
            return True
        return free or not self._ticket

    def _follow(self, until: float) -> None:
        """Waits for an event, and notes what it shows.

        It watches the lock or all slots, if at most one is before this waiter, and otherwise the ticket two before its
        own. The watch begins now, and _see looks if that is too late: etcd serves one of a revision that it already has
        only every 100 ms.
        """
        key, end = next(iter(self._names)), ""
        if len(self._before) > 1:
            key = self._before[1]
        elif len(self._names) > 1:
            key = f"{self._client._prefix}{self._lock._base}/"
            end = key[:-1] + "0"
        if self._watch is None or key != self._key:
            self._unwatch()
            self._key, request = key, {"key": _b64(key, "surrogateescape"), "rangeEnd": _b64(end)}
            self._watch = self._etcd.stream(request, until, self._cancel, *([self._lease.lost] if self._lease else []))
        elif self._connection:
            self._connection.deadline = until
        try:
            self._connection, result = next(self._watch)
        except TimeoutError:
            self._unwatch()
        except StopIteration:
            self._unwatch()
            self._rest()
        else:
            self._pause = _PAUSE
            self._see(result)

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.close()
        self._watch = self._connection = None

    def _rest(self) -> None:
        """Waits after a failure, ever longer, and looks again then."""
        self._cancel._called.wait(max(0.0, min(self._pause * random.uniform(0.5, 1), self._end - time.monotonic())))
        self._pause, self._quiet = min(2 * self._pause, _LONGEST), 0.0

    def _see(self, result: _Json) -> None:
        """Notes what the watch shows, and looks where that does not say enough."""
        act: Optional[Callable[[], None]] = None
        soon = self._free and len(self._before) == 1 and not self._looked  # the second looks anyway
        if result.get("created") and int(result["header"]["revision"]) > self._revision and not soon:
            act = self._look
        for event in result.get("events", []):
            kv = event["kv"]
            if int(kv["mod_revision"]) <= self._revision:
                continue
            name = self._names.get(_text(kv["key"]))
            if len(self._before) > 1:  # it is the second now, if that has taken the lock: the next watch begins with a look
                self._before, self._head, self._free = self._before[:1], self._before[0], set()
            elif name is None:
                continue
            elif not self._saw(name, None if event.get("type") == "DELETE" else _text(kv.get("value", ""))):
                act = self._look  # it may have been passed over
            self._rouse()
        if act:
            act()
