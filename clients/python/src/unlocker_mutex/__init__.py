"""Locks in etcd for several machines, by protocol 1 of unlocker (docs/protocol.md).

    client = Client(["https://etcd-1:2379", "https://etcd-2:2379"], ca_file="ca.pem")
    with client.lock("billing/invoices", timeout=30, purpose="invoices of November") as lock:
        for n, invoice in enumerate(invoices):
            lock.check()                              # raises Lost
            send(invoice, fencing_token=lock.token)
            lock.alive(status=f"invoice {n} of {len(invoices)}")

A holder that dies leaves its lock behind; the daemon, unlocker, removes it after its patience.

Guaranteed: every call ends in time, name resolution excepted. An answer that was lost never
leads to a second lock, nor to a lock that is held without its caller knowing: the call is
repeated with the same uuid. A lock reports its loss before its deadline by the monotonic and by
the wall clock, so also after the process was suspended. Only keys of one's own are written and
deleted.

Not guaranteed: that work stops when the lock is lost. Call check() before each step, and send the
token to the resource that the lock protects. A manual unlock is noticed at the next renewal only.

A Client may be used by several threads, and after a fork. A Lock may be handed to another thread.
Times are seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import os
import random
import re
import signal
import socket
import ssl
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timezone
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Type

from ._etcd import (
    _IDLE, Cancel, Canceled, MutexError, Refused, Unreachable, _Answer, _b64, _delete, _Endpoint, _Etcd, _get, _Json, _put, _text,
)
from ._queue import _SILENCE, _Leases, _Waiter

__all__ = ["Cancel", "Canceled", "Client", "Holder", "Lock", "Lost", "MutexError", "Held", "Refused", "Removal", "Unreachable"]
__version__ = "0.1.0"
for _public in (Cancel, Canceled, MutexError, Refused, Unreachable):
    _public.__module__ = __name__  # as tracebacks show them

_EXPECTED = ("uuid", "hostname", "locked_at", "alert_at", "auto_unlock_at", "alive_at", "owner", "purpose", "pid", "status")
_FIELDS = (*_EXPECTED, "backtrace", "stack", "answered_at")
_RESERVED = (*_FIELDS, "identity")  # by which a Go client may take its own lock again
_MAX_TEXT = 4 << 10  # of owner, purpose, status, backtrace and stack
_MAX_VALUE = 64 << 10  # of metadata
_MAX_RECORD = 32 << 10  # of a removal
_MAX_SLOTS = 1000
_MAX_HOLDS = 64  # of a ticket
_YEAR = 366 * 86400.0
_RETRY = 1.0  # between two renewals if the first one failed
_RENEWAL = 100.0  # between two renewals at most: the daemon's patience ends after five minutes
_SHORTEST, _LONGEST = 0.02, 10.0  # between two attempts to release what late attempts have taken
_ANSWER = 5.0  # between two answers of a lock to questions, whoever asks
_SETTLED = 0.5  # for which a lock is held before its client listens to questions
_DEAF = 600.0  # between two attempts to listen without the right to
_EXPLAIN = 2.0  # for which the record of a removal is looked for: the daemon writes it some milliseconds after the removal


class Lost(MutexError):
    """The lock is no longer held.

    reason is "forced" (it was removed by force), "taken" (and another holds it), "deadline" (it was not
    renewed in time), "unreachable" or "no space" (so renewals failed), "restored" (etcd was set back to
    an earlier state), "forked" (this process is a child of the holder), or "released".
    """

    def __init__(self, name: str, reason: str, read: Optional[Callable[[], Optional[Removal]]] = None) -> None:
        super().__init__(f"lock {name!r} is lost: {reason}")
        self.name = name
        self.reason = reason
        self._read = read if reason in ("forced", "taken") else None  # None also after it was read
        self._removal: Optional[Removal] = None

    def removal(self) -> Optional[Removal]:
        """Reads from etcd, once and for up to two seconds, who removed the lock, for the text of the error, too. None without a record."""
        if read := self._read:
            self._removal, self._read = read() or self._removal, None  # which another thread may have read
        return self._removal

    def __str__(self) -> str:
        return super().__str__() + (f": removed {self._removal}" if self._removal else "")

    def __reduce__(self) -> Tuple[Any, ...]:
        return Lost, (self.name, self.reason), {"_removal": self._removal}  # another process does not read it


@dataclass(frozen=True)
class Removal:
    """What a record in etcd says about a removal: bounded, untrusted text, safe to print by str. trigger is "expiry", "orphan" or "manual"."""

    at: datetime
    trigger: str
    replica: str
    rule: str
    who: str
    why: str

    def __str__(self) -> str:
        words = (("by ", self.who), ("by replica ", self.replica), ("trigger ", self.trigger), ("rule ", self.rule), ("because ", self.why))
        return ", ".join([*(f"{word}{text[:200]!r}" for word, text in words if text), f"at {self.at.isoformat()}"])


class Held(MutexError):
    """Another holder has the lock. If slots is above 0, all slots of a name are held, and holder has one of them."""

    def __init__(self, holder: Holder, slots: int = 0) -> None:
        what = f"the {slots} slots of {holder.name.rpartition('/')[0]!r} are held, one of them" if slots else f"lock {holder.name!r} is held"
        super().__init__(f"{what} by {holder}")
        self.holder, self.slots = holder, slots

    def __reduce__(self) -> Tuple[Any, ...]:
        return Held, (self.holder, self.slots)


@dataclass(frozen=True)
class Holder:
    """The record of who holds a lock, as the holder wrote it: untrusted text."""

    name: str
    fields: Mapping[str, str]

    def time(self, name: str) -> Optional[datetime]:
        """A timestamp by the holder's clock, such as locked_at or auto_unlock_at; None if it is missing or unreadable."""
        text = self.fields.get(name, "")
        try:
            return datetime.fromisoformat(text.replace("Z", "+00:00")) if "T" in text else datetime.fromtimestamp(float(text), timezone.utc)
        except (ValueError, OverflowError, OSError):
            return None

    def __str__(self) -> str:
        names = (("owner", ""), ("hostname", "on "), ("pid", "pid "), ("purpose", "for "), ("status", "at "))
        words = [f"{word}{self.fields[name][:200]!r}" for name, word in names if name in self.fields]
        times = [(word, self.time(name)) for word, name in (("since", "locked_at"), ("until", "auto_unlock_at"))]
        words += [f"{word} {at.isoformat(timespec='seconds')}" for word, at in times if at]
        return " ".join(words) or "an unknown holder"


class _Terms:
    """What the caller asked for, checked and completed."""

    def __init__(
        self, expect: Optional[float], patience: Optional[float], max_hold: Optional[float],
        owner: str = "", purpose: str = "", metadata: Optional[Mapping[str, str]] = None, backtrace: bool = True,
    ) -> None:
        if patience is None:
            patience = 120.0 if max_hold else max(120.0, 2 * (expect or 0))
        self.expect = min(60.0, patience / 2) if expect is None else expect
        self.patience, self.max_hold, self.backtrace = patience, max_hold, backtrace
        for option, seconds, least in (("expect", self.expect, 0.001), ("patience", patience, 1), ("max_hold", max_hold, 1)):
            if seconds is not None and not least <= seconds <= _YEAR:
                raise ValueError(f"{option} must be from {least} to {_YEAR} seconds, not {seconds}")
        if self.expect > patience and not max_hold:
            raise ValueError("expect is more than patience, which needs max_hold")
        self.fields = {"owner": owner[:_MAX_TEXT], "purpose": purpose[:_MAX_TEXT], **(metadata or {})}
        if len(self.fields) > 2 + 32:
            raise ValueError("metadata has more than 32 fields")
        for name, value in (metadata or {}).items():
            if not 0 < len(name) <= 64 or "/" in name or name in _RESERVED or len(value) > _MAX_VALUE:
                raise ValueError(f"metadata {name!r} is a field of the protocol, not the name of a field, or above {_MAX_VALUE} characters")

    def length(self, held: float = 0) -> float:
        """The time until auto_unlock_at of a lock that has been held for so long."""
        return min(self.patience, self.max_hold - held) if self.max_hold else self.patience


class Lock:
    """A lock that is held until it is released or lost. Client makes it; its methods may be called by several threads.

    As a context manager it releases the lock at the end of the block, and raises Lost if the lock
    was lost meanwhile, unless the block raises something else.
    """

    def __init__(self, client: Client, name: str, terms: _Terms, slots: int = 0) -> None:
        self._base, self._slots = name, slots
        self._names = [f"{name}/{slot}" for slot in range(slots)] or [name]
        self.name = random.choice(self._names)
        """The name of the lock, or of the slot that was taken."""
        self.uuid = str(uuid.uuid4())
        self.token = self._revision = 0  # _revision is that of auto_unlock_at
        """The fencing token: it grows with each acquisition of the name."""
        self._client = client
        self._terms = terms
        self._backtrace = _stack(sys._getframe(1)) if terms.backtrace else ""
        self._process = os.getpid()
        self._cluster = ""
        self._started: Dict[str, float] = {}  # monotonic time of each attempt, by its locked_at
        self._written: List[str] = []
        self._thread = threading.get_ident()
        self._mutex = threading.Lock()  # guards what follows
        self._renewing = threading.Lock()  # held during a renewal
        self._lost: Optional[Lost] = None
        self._holding = False  # the lock may be in etcd, by an attempt that was answered
        self._late = 0  # attempts to take it that were not answered, and may be executed late
        self._doubts: Dict[str, int] = {}  # likewise, of other slots
        self._ticket: str = f"{client._waiters}{name}//{self.uuid}"
        self._queued: bool = False  # the ticket may be in etcd
        self._holds: List[str] = [lock.uuid for lock in _held.get() if lock.lost is None]
        self._expires = 0.0  # when the last deadline that was sent passes
        self._trouble = "deadline"  # what the loss will be put down to if no renewal goes through
        self._deadline = self._wall_deadline = self._renew_at = self._acquired_at = 0.0
        self._alert_at = math.inf  # when the stack is to be written
        self._answer_at, self._answered = math.inf, -math.inf  # when a question is to be answered, and one was
        self._status = ""

    @property
    def lost(self) -> Optional[Lost]:
        """Why the lock is lost or released; None while it is held. It asks the clocks, not etcd, so it costs nothing."""
        if self._process != os.getpid():
            return Lost(self.name, "forked")
        with self._mutex:
            if self._lost is None and (time.monotonic() >= self._deadline or time.time() >= self._wall_deadline):
                self._lost = Lost(self.name, self._trouble)
            return self._lost

    def check(self) -> None:
        """Raises Lost unless the lock is held. It asks the clocks, not etcd, so it costs nothing."""
        lost = self.lost
        if lost is not None:
            raise lost

    def alive(self, status: Optional[str] = None, *, expect: Optional[float] = None, patience: Optional[float] = None) -> None:
        """Moves the deadlines forward: expect and patience are seconds from now, and stay for the next calls.

        status says in words how far the work is. Raises Lost if the lock is lost, and Unreachable
        or Refused if the renewal failed: the lock is then held until its deadline, so try again. A
        shorter patience counts also then, since etcd may have it.
        """
        self.check()
        with self._renewing:
            old, self._thread = self._terms, threading.get_ident()
            self._terms = _Terms(expect or old.expect, patience or old.patience, old.max_hold, backtrace=old.backtrace)
            self._status = self._status if status is None else status[:_MAX_TEXT]
            try:
                self._client._renew([self], status=status)
            except MutexError as error:
                if self.lost is not None:
                    raise self.lost from error
                raise
            finally:
                self._client._background.add(self)
        self.check()

    def unlock(self) -> None:
        """Releases the lock. Raises Lost if it was lost before.

        Raises Unreachable or Refused if that is not known; the release is then tried again in the
        background. So is that of a lost lock, which is reported at once. Does nothing if the lock is
        released already.
        """
        self._client.unlock_all([self])

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        cause = error
        try:
            self.unlock()
        except MutexError as failed:
            if error is None:
                cause = failed
                raise
        finally:
            if isinstance(cause, Lost) and cause.name == self.name:
                cause.removal()  # for its text

    def __reduce__(self) -> Tuple[Any, ...]:
        raise TypeError(f"lock {self.name!r} cannot be pickled or copied: only this process holds it. Pass the token, or lock in the other process")

    def _key(self, name: str) -> str:
        return f"{self._client._prefix}{self.name}/{name}"

    def _acquisition(self) -> _Json:
        """The transaction that takes the lock or shows who has it."""
        monotonic, now, terms = time.monotonic(), time.time(), self._terms
        self._started = {stamp: at for stamp, at in self._started.items() if monotonic - at < terms.patience}
        fields = {
            **{"uuid": self.uuid, "hostname": socket.gethostname(), "pid": str(os.getpid()), "locked_at": _stamp(now)},
            **{"alert_at": _stamp(now + terms.expect), "auto_unlock_at": _stamp(now + terms.length())},
            **{"backtrace": self._backtrace, **terms.fields},
        }
        fields = {name: value for name, value in fields.items() if value}
        self._started[fields["locked_at"]] = monotonic
        self._expires = monotonic + terms.length()
        self._written = list(fields)
        return {
            "compare": [{"target": "VERSION", "result": "EQUAL", "key": _b64(self._key("uuid")), "version": "0"}],
            "success": [_put(self._key(name), value) for name, value in fields.items()],
            "failure": self._reading(),
        }

    def _reading(self) -> List[_Json]:
        return [_get(self._key(name)) for name in _EXPECTED]

    def _holder(self, found: Mapping[str, Tuple[str, int, int]]) -> Holder:
        """Who has the lock, by the keys that were read, without those that an earlier holder has left; no fields if it is free."""
        created = found.get(self._key("uuid"), ("", math.inf, 0))[1]
        return Holder(self.name, {name: found[key][0] for name in _EXPECTED for key in [self._key(name)] if key in found and found[key][2] >= created})

    def _acquired(self, answer: _Answer) -> Optional[Holder]:
        """Reads the answer of an acquisition, and returns the holder if it is another one."""
        revision = answer.revision
        stamp, started = max(self._started.items(), key=lambda item: item[1])
        self._late += answer.unanswered
        if not answer.succeeded:
            holder = self._holder(answer.found)
            if holder.fields.get("uuid") != self.uuid:
                return holder
            # An answer was lost. That attempt took the lock.
            self._late -= 1
            revision, stamp = answer.found[self._key("uuid")][1], holder.fields.get("locked_at", stamp)
            started = self._started.get(stamp, started)
        self._holding, self._cluster = True, answer.cluster
        self.token, self._acquired_at, self._revision = revision, started, revision
        self._granted(started, float(stamp), self._terms.length(), alert=True)
        self._client._background.add(self)
        return None

    def _granted(self, started: float, wall: float, patience: float, *, alert: bool) -> None:
        """Notes the deadlines that a transaction has written, as of the time before it was sent."""
        with self._mutex:
            self._deadline, self._wall_deadline = _ends(started, patience), _ends(wall, patience)
            more = self._terms.max_hold and started + patience < self._acquired_at + self._terms.max_hold
            self._renew_at = started + min(patience / 3, _RENEWAL) if more else math.inf
            self._trouble = "deadline"
            if alert:
                self._alert_at = started + self._terms.expect if self._terms.backtrace else math.inf

    def _asked(self, started: float, wall: float, patience: float) -> None:
        """Notes the deadlines of a renewal that is about to be sent: earlier ones count from now, since etcd may have them without an answer."""
        with self._mutex:
            self._deadline, self._wall_deadline = min(self._deadline, _ends(started, patience)), min(self._wall_deadline, _ends(wall, patience))
            self._expires = max(self._expires, started + patience)
            if self._renew_at < math.inf:
                self._renew_at = min(self._renew_at, started + patience / 3)

    def _renewal(self, wall: float, patience: float, alert: bool, status: Optional[str]) -> _Json:
        fields = {"auto_unlock_at": _stamp(wall + patience), "alive_at": _stamp(wall)}
        if alert:
            fields["alert_at"] = _stamp(wall + self._terms.expect)
        if status is not None:
            fields["status"] = status[:_MAX_TEXT]
        txn = self._if_mine([_put(self._key(name), value) for name, value in fields.items()], "uuid", "auto_unlock_at")
        # An attempt without an answer may be executed late. It must not bring back its deadline after that of a later one.
        key = _b64(self._key("auto_unlock_at"))
        txn["compare"].append({"target": "MOD", "result": "EQUAL", "key": key, "mod_revision": str(self._revision)})
        return txn

    def _renewed(self, answer: _Answer) -> bool:
        """Reports whether the lock was renewed, and ends it if it is lost. Otherwise its deadline was moved, such as by an attempt without an answer."""
        if reason := self._missing(answer):
            self._end(reason)
        self._revision = answer.revision if answer.succeeded else answer.found.get(self._key("auto_unlock_at"), ("", 0, 0))[2]
        return answer.succeeded and not reason

    def _removal(self) -> _Json:
        """The transaction that releases the lock, if it is or may be in etcd, and the ticket, if that may be there."""
        fields = dict.fromkeys([*self._written, *_FIELDS]) if self._holding or self._late > 0 else ()
        txn = self._if_mine([_delete(self._key(name)) for name in fields], "uuid")
        if self._queued:
            for branch in ("success", "failure"):
                txn[branch].append(_delete(self._ticket))
        return txn

    def _released(self, answer: _Answer) -> None:
        """Reads the answer of a removal in the background."""
        if not self._holding and answer.succeeded:
            self._late -= 1
        queued, self._holding, self._queued = self._queued, False, False
        self._queued = queued and self._left()  # late attempts may put it again

    def _if_mine(self, requests: List[_Json], *otherwise: str) -> _Json:
        mine = {"target": "VALUE", "result": "EQUAL", "key": _b64(self._key("uuid")), "value": _b64(self.uuid)}
        return {"compare": [mine], "success": requests, "failure": [_get(self._key(name)) for name in otherwise]}

    def _missing(self, answer: _Answer) -> str:
        """Why the lock is lost, by the answer of a transaction that has compared the uuid, and reads it otherwise."""
        if answer.cluster != self._cluster or answer.revision < self.token:
            return "restored"  # others may have taken the lock before, or after
        if answer.succeeded:
            return ""
        found = answer.found.get(self._key("uuid"))
        self._holding = bool(found and found[0] == self.uuid)
        return "" if self._holding else "taken" if found else "forced"

    def _end(self, reason: str) -> Lost:
        """Ends the lock, unless it has ended already, and returns the first reason."""
        with self._mutex:
            self._lost = self._lost or Lost(self.name, reason, self._record)
            return self._lost

    def _record(self) -> Optional[Removal]:
        """Reads the record of the removal until it is there, and gives up at the first error."""
        name = self.name.encode()
        shown = self.name if len(name) <= 512 else name[:512].decode("utf-8", "ignore") + "…"
        key, end, pause = f"{self._client._audit}{shown}//{self.token}", time.monotonic() + _EXPLAIN, 0.02
        try:
            while not (found := next(self._client._etcd.send([{"success": [_get(key)], "failure": []}], end)).found) and time.monotonic() + pause < end:
                time.sleep(pause)
                pause *= 2
            return _removal(found[key][0], self.uuid) if found else None
        except MutexError:
            return None

    def _left(self) -> bool:
        """Reports whether something in etcd is to be released, or may be."""
        return self._holding or self._queued or (self._late > 0 and time.monotonic() < self._expires)

    def _move(self, name: str) -> None:
        """Has the next attempt take this slot."""
        self._doubts[self.name], self.name = self._late, name
        self._late = self._doubts.pop(name, 0)

    def _leave(self, taken: bool) -> None:
        """Releases in the background what the call that has ended leaves in etcd: a ticket, what late attempts take, and the lock if it is not taken."""
        lefts = [(name, late, False) for name, late in self._doubts.items() if late > 0]
        if not taken:
            self._client._background.release(self)
        elif self._queued:
            self._queued = False
            lefts.append((self.name, 0, True))
        for name, late, queued in lefts:
            left = Lock(self._client, name, self._terms)
            left.uuid, left._ticket, left._written, left._expires = self.uuid, self._ticket, self._written, self._expires
            left._late, left._queued = late, queued
            self._client._background.release(left)

    def _failed(self, error: MutexError) -> None:
        with self._mutex:
            self._trouble = "no space" if isinstance(error, Refused) and error.no_space else "unreachable"


_held: ContextVar[Sequence[Lock]] = ContextVar("unlocker_mutex", default=())  # taken in this thread or task


def _hold(locks: List[Lock]) -> List[Lock]:
    """Notes that this thread or task has taken the locks, for the tickets of its later waits."""
    _held.set([*(lock for lock in _held.get() if lock.lost is None), *locks][-_MAX_HOLDS:])
    return locks


class Client:
    """Takes locks. It connects when it is first used, and may be used by several threads.

    endpoints are URLs or host:port of etcd members; the next one is asked when one fails.
    owner is the default of its locks, which is otherwise the name of the script. request_timeout
    bounds each transaction, with all its attempts. audit_prefix is where the daemon keeps records of
    removals (see Lost.removal), /unlocker/audit followed by the prefix by default. ask_prefix is where
    unlocker ask asks the holders of locks, /unlocker/ask followed by the prefix by default: a thread
    listens there while locks are held, and answers with the stack and the last status. Without the right
    to read there, the logger unlocker_mutex says so once, and the rest works. waiters_prefix is where
    waits leave their tickets, /unlocker/waiters followed by the prefix by default. Without the right to
    read and write there, the logger says so once, and waiters get locks in no order.

    release_on_sigterm, for the main thread of a main program: SIGTERM ends the program as sys.exit(143)
    does, so that with blocks are left, unless the program has a handler of its own; and all locks that
    are still held when the program ends are released, for up to request_timeout and a second.
    """

    def __init__(
        self, endpoints: Sequence[str] = ("127.0.0.1:2379",), *, user: str = "", password: str = "",
        ca_file: Optional[str] = None, cert_file: Optional[str] = None, key_file: Optional[str] = None, server_name: Optional[str] = None,
        prefix: str = "/mutexes/", owner: str = "", request_timeout: float = 5.0, audit_prefix: str = "", ask_prefix: str = "",
        waiters_prefix: str = "", release_on_sigterm: bool = False,
    ) -> None:
        if isinstance(endpoints, str) or not endpoints:
            raise ValueError("endpoints must be a list of at least one URL")
        if not prefix.endswith("/"):
            raise ValueError(f"prefix must end with a slash: {prefix!r}")
        if not request_timeout > 0:
            raise ValueError(f"request_timeout must be above 0, not {request_timeout}")
        self._prefix, self._timeout = prefix, request_timeout
        self._audit = (audit_prefix or "/unlocker/audit" + prefix).removesuffix("/") + "/"
        self._ask = (ask_prefix or "/unlocker/ask" + prefix).removesuffix("/") + "/"
        self._waiters = (waiters_prefix or "/unlocker/waiters" + prefix).removesuffix("/") + "/"
        self._plain, self._said_plain = 0.0, False  # until when waits do without tickets, and whether that was said
        self._owner = owner or os.path.basename(sys.argv[0])
        self._etcd = _Etcd([_Endpoint(e) for e in endpoints], user, password, server_name, request_timeout)
        if any(e.tls for e in self._etcd.endpoints):
            self._etcd.tls = ssl.create_default_context(cafile=ca_file)
            if cert_file:
                self._etcd.tls.load_cert_chain(cert_file, key_file)
        elif ca_file or cert_file:
            raise ValueError("ca_file and cert_file need endpoints that begin with https://")
        self._process: Tuple[int, _Background] = (0, _Background(self))
        if release_on_sigterm:
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                signal.signal(signal.SIGTERM, _exit(os.getpid()))
            atexit.register(self._release_all)

    def __reduce__(self) -> Tuple[Any, ...]:
        raise TypeError("a Client cannot be pickled or copied: it has connections and threads. Make one in the other process")

    def _release_all(self) -> None:
        """Releases at exit what is held. No thread can be started any more."""
        background = self._background
        with background._changed:
            held = [lock for lock in background._locks if lock.lost is None]
        try:
            with contextlib.suppress(RuntimeError):  # to try again, which follows
                self.unlock_all(held)
            background._release(list(background._leftovers))
        except MutexError as error:
            logging.getLogger(__name__).warning("locks were not released at exit: %s", error)

    @property
    def _background(self) -> _Background:
        """A thread does not survive a fork, and the locks of the parent are not ours."""
        if self._process[0] != os.getpid():
            self._process = (os.getpid(), _Background(self))
        return self._process[1]

    def lock(
        self, name: str, *, timeout: Optional[float] = None, cancel: Optional[Cancel] = None,
        expect: Optional[float] = None, patience: Optional[float] = None, max_hold: Optional[float] = None,
        owner: str = "", purpose: str = "", metadata: Optional[Mapping[str, str]] = None, backtrace: bool = True, slots: Optional[int] = None,
    ) -> Lock:
        """Takes a lock, and waits for it for up to timeout; None is without limit, 0 is try_lock. Times are seconds.

        expect is the expected runtime, 60 by default: past it an alert fires, and the present stack
        of the thread that locked or renewed last is written to the lock. patience is how long the
        lock lasts after the last renewal: 120 by default, or twice expect if that is more and there
        is no max_hold. With max_hold a background thread renews the lock until then, and does not
        put off the alert. owner is the name of the service, that of the client by default. metadata
        are further fields. backtrace=False writes neither the stack at the call nor the one at the
        alert. slots, 1 to 1000, is how many may hold the name at once: Lock.name is then the name of the
        slot, which is a lock of its own, name/0 to name/N-1. All should give the same number.

        Waiters get the lock in the order in which they came, each with a ticket, whose lease of 10 seconds
        is all that is renewed meanwhile: see waiters_prefix. The ticket says which locks this thread, or
        asyncio task, holds, those of the task that created it included, so that deadlocks are found. Waiting
        returns when the lock is released. It waits for etcd, too. Another thread may cancel it. Raises Held
        with the holder when timeout is over, Unreachable if etcd does not answer then, and Refused if it does
        not accept the request.
        """
        lock = self._new([name], expect, patience, max_hold, owner, purpose, metadata, backtrace, slots)[0]
        return _hold([self._take(lock, timeout, cancel or Cancel())])[0]

    def _new(
        self, names: Iterable[str], expect: Optional[float] = None, patience: Optional[float] = None, max_hold: Optional[float] = None,
        owner: str = "", purpose: str = "", metadata: Optional[Mapping[str, str]] = None, backtrace: bool = True, slots: Optional[int] = None,
    ) -> List[Lock]:
        """Returns locks that are to be taken, with the stack, the thread and the locks of the caller."""
        if slots is not None and not 1 <= slots <= _MAX_SLOTS:
            raise ValueError(f"slots must be from 1 to {_MAX_SLOTS}, not {slots}")
        terms = _Terms(expect, patience, max_hold, owner or self._owner, purpose, metadata, backtrace)
        locks = [Lock(self, _checked(name), terms, slots or 0) for name in names]
        if len({lock.name for lock in locks}) < len(locks):
            raise ValueError("names has a name twice")
        return locks

    def _take(self, lock: Lock, timeout: Optional[float], cancel: Cancel) -> Lock:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"timeout must be at least 0, not {timeout}")
        waiter = _Waiter(lock, math.inf if not timeout else time.monotonic() + timeout, cancel)
        try:
            holder = waiter.take() if timeout == 0 else waiter.wait()
        except BaseException as error:
            lock._late += not isinstance(error, MutexError)
            lock._leave(False)
            raise
        finally:
            waiter.close()
        lock._leave(holder is None)
        if holder is not None:
            raise Held(holder, lock._slots)
        return lock

    def try_lock(
        self, name: str, *,
        expect: Optional[float] = None, patience: Optional[float] = None, max_hold: Optional[float] = None,
        owner: str = "", purpose: str = "", metadata: Optional[Mapping[str, str]] = None, backtrace: bool = True, slots: Optional[int] = None,
    ) -> Lock:
        """Takes a lock if it is free, also where others wait, as lock does, or raises Held with the holder."""
        terms: Dict[str, Any] = {"expect": expect, "patience": patience, "max_hold": max_hold, "metadata": metadata, "backtrace": backtrace}
        return self.lock(name, timeout=0, owner=owner, purpose=purpose, slots=slots, **terms)

    def try_lock_all(
        self, names: Iterable[str], *,
        expect: Optional[float] = None, patience: Optional[float] = None, max_hold: Optional[float] = None,
        owner: str = "", purpose: str = "", metadata: Optional[Mapping[str, str]] = None, backtrace: bool = True,
    ) -> Tuple[List[Lock], List[Held]]:
        """Takes those of the locks that are free, about a hundred with each transaction, and says who holds the others.

        The options are those of lock, in seconds. Raises Unreachable or Refused; then it holds none of them.
        """
        taken, held = self._take_all(self._new(names, expect, patience, max_hold, owner, purpose, metadata, backtrace))
        return _hold(taken), held

    def _take_all(self, locks: Sequence[Lock]) -> Tuple[List[Lock], List[Held]]:
        taken: List[Lock] = []
        held: List[Held] = []
        waiting = deque(locks)
        try:
            for answer in self._etcd.send([lock._acquisition() for lock in locks]):
                lock = waiting.popleft()
                holder = lock._acquired(answer)
                if holder is None:
                    taken.append(lock)
                else:
                    held.append(Held(holder))
                    self._background.release(lock)
        except BaseException as error:
            self._abandon(error, *waiting)
            for lock in taken:
                self._background.release(lock)
            raise
        return taken, held

    def _abandon(self, error: BaseException, *locks: Lock) -> None:
        """Releases what a failed call may have taken, or may take late."""
        for lock in locks:
            lock._late += error._unanswered if isinstance(error, MutexError) else 1
            self._background.release(lock)

    def close(self) -> None:
        """Closes the idle connections. It releases no locks, and the client may be used again."""
        for endpoint in self._etcd.endpoints:
            endpoint.close()

    def _renew(self, locks: Sequence[Lock], end: float = math.inf, *, kept: bool = False, status: Optional[str] = None) -> None:
        """Renews locks, and ends those that turn out to be lost. The caller holds _renewing of each."""
        end = min(end, time.monotonic() + self._timeout)
        while locks:
            monotonic, wall = time.monotonic(), time.time()
            # max_hold does not bound the renewals that the holder asks for.
            terms = [(lock, lock._terms.length(monotonic - lock._acquired_at if kept else -math.inf)) for lock in locks]
            for lock, patience in terms:
                lock._asked(monotonic, wall, patience)
            end = min(end, max(lock._deadline for lock in locks))  # afterwards they are lost
            attempt = min(patience for _, patience in terms) / 6
            answers = self._etcd.send([lock._renewal(wall, patience, not kept, status) for lock, patience in terms], end, attempt)
            again: List[Lock] = []
            try:
                for (lock, patience), answer in zip(terms, answers):
                    if lock._renewed(answer):
                        lock._granted(monotonic, wall, patience, alert=not kept)
                    elif lock._lost is None:
                        again.append(lock)
            except MutexError as error:
                for lock in locks:
                    lock._failed(error)
                raise
            locks = again

    def unlock_all(self, locks: Sequence[Lock]) -> None:
        """Releases several locks as Lock.unlock does, in few transactions. Raises the first Lost, or Unreachable or Refused."""
        lost = {lock: lock.lost for lock in locks}
        errors = [error for error in lost.values() if error is not None and error.reason != "released"]
        held = [lock for lock, error in lost.items() if lock._holding and (error is None or error.reason == "released")]
        for lock in held:
            lock._end("released")
        waiting = deque(held)
        try:
            for answer in self._etcd.send([lock._removal() for lock in held]):
                lock = waiting.popleft()
                lock._holding = False
                reason = lock._missing(answer)
                # After an attempt without an answer, a lock that is not there is the one that it removed.
                if reason and lost[lock] is None and not answer.unanswered:
                    errors.append(Lost(lock.name, reason, lock._record))
        except MutexError as error:
            if not errors:
                raise
            errors[0].__cause__ = error
        finally:
            for lock in lost:
                self._background.release(lock)
        if errors:
            raise errors[0]


class _Background:
    """The thread of a client that renews locks with max_hold, writes stacks at alert_at, answers questions, and releases what a failed call may have left.

    It starts when there is work, and ends some seconds after the last of it. Another one listens to questions, and ends up to a minute after the last lock.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.leases = _Leases(client._etcd)
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        self._ear: Optional[threading.Thread] = None
        self._deaf = False  # it was said that questions cannot be read
        self._locks: Dict[Lock, None] = {}
        self._leftovers: Dict[Lock, Tuple[float, float]] = {}  # when the next attempt is due, and the pause after it
        self._wakes = math.inf

    def add(self, lock: Lock) -> None:
        """Looks after the lock until it ends. To be called again when its times have moved."""
        with self._changed:
            self._locks[lock] = None
            self._nudge(min(lock._renew_at, lock._alert_at))
            if self._ear is None:
                self._ear = threading.Thread(target=self._listen, name="unlocker-mutex-questions", daemon=True)
                self._ear.start()

    def release(self, lock: Lock) -> None:
        """Releases the lock, if it is held, as soon as etcd allows it, and what late attempts take."""
        if lock._process != os.getpid():
            return
        lock._end("released")
        with self._changed:
            if lock not in self._leftovers and lock._left():
                self._leftovers[lock] = (0.0, _SHORTEST)
                self._nudge(0.0)

    def _nudge(self, at: float) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="unlocker-mutex", daemon=True)
            self._thread.start()
        elif at < self._wakes:
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wakes = self._next()
                idle = _IDLE if self._wakes == math.inf and not self._locks else _SILENCE
                self._changed.wait(max(0, min(self._wakes - time.monotonic(), idle)))
                if idle == _IDLE and self._next() == math.inf and not self._locks:
                    self._thread = None
                    return
                self._wakes = 0.0  # no need to wake it
                locks, leftovers = list(self._locks), [lock for lock, (at, _) in self._leftovers.items() if at <= time.monotonic()]
            self._renew(locks)
            self._write(locks)
            self._release(leftovers)

    def _next(self) -> float:
        """When something is to be done. Forgets the locks that have ended."""
        for lock in [lock for lock in self._locks if lock.lost is not None]:
            del self._locks[lock]
        for lock in [lock for lock in self._leftovers if not lock._left()]:
            del self._leftovers[lock]
        return min((*(min(lock._renew_at, lock._alert_at, lock._answer_at) for lock in self._locks), *(at for at, _ in self._leftovers.values())), default=math.inf)

    def _renew(self, locks: Sequence[Lock]) -> None:
        now = time.monotonic()
        locks = [lock for lock in locks if lock.lost is None]  # after a suspension they may be
        if not any(lock._renew_at <= now for lock in locks):
            return
        # What is due soon goes along. A lock that its holder is renewing need not be renewed here.
        due = [lock for lock in locks if lock._renew_at <= now + lock._terms.patience / 6 and lock._renewing.acquire(blocking=False)]
        if not due:
            return
        try:
            self._client._renew(due, now + min(lock._terms.patience for lock in due) / 3, kept=True)
        except MutexError:
            for lock in due:
                lock._renew_at = time.monotonic() + min(_RETRY, lock._terms.patience / 10)
        finally:
            for lock in due:
                lock._renewing.release()

    def _write(self, locks: Sequence[Lock]) -> None:
        """Writes stacks at alert_at, and answers, which are no renewals. A failed answer is not repeated: whoever asked asks again."""
        now, frames, txns = time.monotonic(), sys._current_frames(), []
        alerts = [lock for lock in locks if lock._alert_at <= now]
        for lock in locks:
            if min(lock._alert_at, lock._answer_at) > now or lock.lost is not None:
                continue
            fields = {"stack": _stack(frames.get(lock._thread))} if lock._terms.backtrace else {}
            if lock._answer_at <= now:
                fields.update({"answered_at": _stamp(time.time()), **({"status": lock._status} if lock._status else {})})
                lock._answer_at, lock._answered = math.inf, now
            txns.append(lock._if_mine([_put(lock._key(name), value) for name, value in fields.items()]))
        for lock in alerts:
            lock._alert_at = math.inf
        try:
            for _ in self._client._etcd.send(txns, now + _RETRY):
                pass
        except MutexError:
            for lock in alerts:
                lock._alert_at = min(lock._alert_at, now + 2 * _RETRY)

    def _listen(self) -> None:
        """Follows the questions to all holders, by one watch, as long as there are locks."""
        etcd, prefix, pause = self._client._etcd, self._client._ask, _SETTLED
        keys = {"key": _b64(prefix), "rangeEnd": _b64(prefix[:-1] + "0")}
        while True:
            time.sleep(pause)
            with self._changed:
                if all(lock.lost is not None for lock in self._locks):
                    self._ear = None
                    return
            pause = _RETRY
            try:
                found, revision = etcd.list(keys)
                self._asked(found)
                for _, result in etcd.stream({**keys, "startRevision": str(revision + 1)}, time.monotonic() + _SILENCE):
                    self._asked([_text(e["kv"]["key"]) for e in result.get("events", []) if e.get("type") != "DELETE"])
            except TimeoutError:
                pause = 0.0
            except Refused as refused:
                pause = _DEAF if refused.code == 7 else pause
                if refused.code == 7 and not self._deaf:
                    self._deaf = True
                    logging.getLogger(__name__).warning("no right to read questions under %s: unlocker ask gets no answers from this process", prefix)
            except MutexError:
                pass

    def _asked(self, keys: Iterable[str]) -> None:
        keys = set(keys)
        with self._changed:
            for lock in self._locks:
                if f"{self._client._ask}{lock.name}//{lock.uuid}" in keys:
                    lock._answer_at = max(time.monotonic(), lock._answered + _ANSWER)
                    self._nudge(lock._answer_at)

    def _release(self, locks: Sequence[Lock]) -> None:
        end = time.monotonic() + _RETRY
        try:
            for lock, answer in zip(locks, self._client._etcd.send([lock._removal() for lock in locks], end)):
                lock._released(answer)
        except MutexError as error:  # it is tried again
            if isinstance(error, Refused):
                for lock in locks:
                    lock._queued = False  # there may be no right to tickets any more, which expire
        with self._changed:
            for lock in [lock for lock in locks if lock in self._leftovers]:
                pause = self._leftovers[lock][1]
                self._leftovers[lock] = (time.monotonic() + pause, min(2 * pause, _LONGEST))


def _exit(process: int) -> Callable[[int, Optional[FrameType]], None]:
    """A handler of SIGTERM that ends the program once. Children of a fork die as without it."""
    exiting: List[bool] = []

    def exit(number: int, _: Optional[FrameType]) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not exiting:
            exiting.append(True)
            sys.exit(128 + number)

    return exit


def _ends(start: float, patience: float) -> float:
    """When a holder gives up a lock: early, to stop before another can hold it."""
    return start + patience - min(5.0, patience / 10)


def _removal(text: str, uuid: str) -> Optional[Removal]:
    """Reads the record of a removal; None if it is not one of the removal of the uuid."""
    try:
        record = json.loads(text) if len(text) <= _MAX_RECORD else {}
        when = re.sub(r"\.\d+", "", record["when"]).replace("Z", "+00:00")  # Python 3.9 reads neither
        at, rule = datetime.fromisoformat(when).astimezone(timezone.utc), (record.get("verdict") or {}).get("reason")
    except (ValueError, OverflowError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    texts = (record.get("trigger"), record.get("replica"), rule, record.get("who"), record.get("reason"))
    removal = Removal(at, *(t.encode("utf-8", "replace")[:_MAX_TEXT].decode("utf-8", "ignore") if isinstance(t, str) else "" for t in texts))
    return removal if record.get("uuid") == uuid else None


def _checked(name: str) -> str:
    if not name or not all(name.split("/")):
        raise ValueError(f"name {name!r} is not a name: it is empty or has an empty segment")
    return name


def _stamp(seconds: float) -> str:
    return f"{seconds:.3f}"


def _stack(frame: Optional[FrameType]) -> str:
    """The stack of a thread without the frames of this module, innermost last, of which the end is kept."""
    if frame is None:
        return "the thread that locked has ended"
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__):
        frame = frame.f_back
    return "".join(traceback.format_stack(frame)).encode("utf-8", "replace")[-_MAX_TEXT:].decode("utf-8", "ignore")
