"""Requests to etcd's JSON gateway: with failover, login, batches, watches, and an end in time."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import math
import os
import random
import socket
import ssl
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, Generator, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, cast
from urllib.parse import urlsplit

_Json = Dict[str, Any]

_MAX_OPS = 128  # etcd's --max-txn-ops, which counts each level of nested transactions
_MAX_BYTES = 1 << 20  # below etcd's --max-request-bytes of 1.5 MiB
_IDLE = 10.0  # for which a connection is kept: less than what balancers and firewalls allow
_ATTEMPT = 5.0  # for which a request may be on its way: the daemon counts on it
_LOGIN = 60.0  # between two logins at least, unless etcd refuses the token: it may be slow, and a login costs it CPU time


class MutexError(Exception):
    """The base of all errors of this module."""

    _unanswered = 0  # attempts of the failed call that may have been executed, or may be executed late


class Unreachable(MutexError):
    """No endpoint answered in time. What was asked for may have been done.

    The text has the last reason that is not a time-out, if there is one; __cause__ is that exception.
    """


class Refused(MutexError):
    """etcd refused the request; code is the gRPC status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> Tuple[Any, ...]:
        return Refused, (self.code, str(self))

    @property
    def no_space(self) -> bool:
        """Reports whether etcd has reached its quota."""
        return "database space exceeded" in str(self)


class Canceled(MutexError):
    """A call of lock was canceled by its Cancel. It holds no lock."""


class Cancel:
    """Cancels, when it is called, the calls of lock in other threads that were given it, and later ones.

    One that waits raises Canceled at once, and one whose request is on its way when that is answered,
    within request_timeout, unless it has the lock by then.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._called = threading.Event()
        self._waits: Dict[_Connection, None] = {}

    def __call__(self) -> None:
        with self._mutex:
            self._called.set()
            for connection in self._waits:
                connection.abort()

    @contextlib.contextmanager
    def _aborts(self, connection: _Connection) -> Iterator[None]:
        with self._mutex:
            self._waits[connection] = None
            if self._called.is_set():
                connection.abort()
        try:
            yield
        finally:
            with self._mutex:
                del self._waits[connection]


class _Answer(NamedTuple):
    """The answer to one transaction."""

    txn: _Json
    revision: int
    cluster: str
    unanswered: int  # attempts before it, which may have been executed, or may be executed late

    @property
    def succeeded(self) -> bool:
        return bool(self.txn.get("succeeded"))

    @property
    def found(self) -> Dict[str, Tuple[str, int, int]]:
        """The values, create revisions and mod revisions of the keys that the transaction read, nested ones included."""
        pairs, responses = [], list(self.txn.get("responses", []))
        for response in responses:
            pairs += response.get("response_range", {}).get("kvs", [])
            responses += response.get("response_txn", {}).get("responses", [])
        return {_text(kv["key"], "surrogateescape"): (_text(kv.get("value", "")), int(kv["create_revision"]), int(kv["mod_revision"])) for kv in pairs}


class _Failure(Exception):
    """An endpoint did not answer, or asked to try again; executed says whether it may have done what was asked, silent whether it took a new connection and then said nothing."""

    def __init__(self, reason: str, executed: bool, silent: bool = False) -> None:
        super().__init__(reason)
        self.executed, self.silent = executed, silent


class _Endpoint:
    def __init__(self, text: str) -> None:
        url = urlsplit(text if "://" in text else "http://" + text)
        if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/") or url.query or url.username:
            raise ValueError(f"endpoint {text!r} is not a URL of the form https://host:port")
        self.host, self.port, self.tls = url.hostname, url.port or 2379, url.scheme == "https"
        self.text = f"{url.scheme}://{url.netloc}" if url.port else f"{url.scheme}://{url.netloc}:2379"
        self.idle: Deque[Tuple[int, float, _Connection]] = deque()

    def __str__(self) -> str:
        return self.text

    def take(self) -> Optional[_Connection]:
        """Returns an idle connection, unless it belongs to the parent of a fork or is old."""
        while True:
            try:
                process, since, connection = self.idle.pop()
            except IndexError:
                return None
            if process == os.getpid() and time.monotonic() - since < _IDLE:
                return connection
            connection.close()

    def close(self) -> None:
        while connection := self.take():
            connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose deadline bounds all that it does: the timeout of a socket bounds each read alone."""

    def __init__(self, endpoint: _Endpoint, tls: Optional[ssl.SSLContext], server_name: Optional[str]) -> None:
        super().__init__(endpoint.host, endpoint.port)
        self._tls = tls if endpoint.tls else None
        self._server_name = server_name or endpoint.host
        self.deadline = 0.0

    def connect(self) -> None:
        error: Optional[OSError] = None
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                self.arm(sock).connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                if self._tls:
                    sock = self._tls.wrap_socket(self.arm(sock), server_hostname=self._server_name)
                self.sock = cast(socket.socket, _Bounded(sock, self))
                return
            except OSError as e:
                sock.close()
                error = e
        raise error or OSError("no address")

    def abort(self) -> None:
        """Ends the answer that another thread reads."""
        if isinstance(self.sock, _Bounded):
            self.sock.abort()

    def arm(self, sock: socket.socket) -> socket.socket:
        remaining = self.deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(None if remaining == math.inf else remaining)
        return sock


class _Bounded(io.RawIOBase):
    """What http.client needs of a socket, within the deadline of its connection."""

    def __init__(self, sock: socket.socket, connection: _Connection, part: Optional[socket.SocketIO] = None) -> None:
        self._sock, self._connection = sock, connection
        self._open = part or sock  # the socket stays open until all are closed: an answer may be read afterwards

    def sendall(self, data: bytes) -> None:
        self._connection.arm(self._sock).sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Bounded(self._sock, self._connection, self._sock.makefile("rb", 0)))

    def abort(self) -> None:
        with contextlib.suppress(OSError):  # it is not connected any more
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.arm(self._sock).recv_into(buffer)

    def close(self) -> None:
        self._open.close()
        super().close()


class _Etcd:
    """Requests to etcd's JSON gateway, with failover, login and batches."""

    def __init__(self, endpoints: List[_Endpoint], user: str, password: str, server_name: Optional[str], timeout: float) -> None:
        self.endpoints = endpoints
        self.tls: Optional[ssl.SSLContext] = None
        self._user, self._password, self._server_name, self._timeout = user, password, server_name, timeout
        self._attempt = min(_ATTEMPT, timeout / min(3, max(2, len(endpoints))))
        self._current = 0
        self._token: Optional[str] = None if user else ""  # None: to be asked for; "": none is needed
        self._login = -math.inf  # when the last one began, whatever became of it

    def send(self, txns: Sequence[_Json], end: float = math.inf, attempt: float = math.inf) -> Iterator[_Answer]:
        """Executes independent transactions, many in one as far as etcd's limits allow, each within the timeout. Yields the answer to each."""
        for batch in _batches(txns):
            body = batch[0] if len(batch) == 1 else {"success": [{"requestTxn": txn} for txn in batch]}
            answer, unanswered = self._call("/v3/kv/txn", body, min(end, time.monotonic() + self._timeout), attempt)
            header = answer["header"]
            for part in [answer] if len(batch) == 1 else [r["response_txn"] for r in answer["responses"]]:
                yield _Answer(part, int(header["revision"]), str(header["cluster_id"]), unanswered)

    def list(self, keys: _Json) -> Tuple[List[str], int]:
        """Returns the keys of a range, and the revision."""
        answer, _ = self._call("/v3/kv/range", {**keys, "keysOnly": True}, time.monotonic() + self._timeout, math.inf)
        return [_text(kv["key"]) for kv in answer.get("kvs", [])], int(answer["header"]["revision"])

    def grant(self, ttl: float, end: float) -> str:
        """Returns a new lease."""
        answer, _ = self._call("/v3/lease/grant", {"TTL": str(int(ttl))}, min(end, time.monotonic() + self._timeout), math.inf)
        return str(answer["ID"])

    def keep(self, lease: str, end: float) -> bool:
        """Prolongs a lease, and reports whether there still is one."""
        return "TTL" in self._call("/v3/lease/keepalive", {"ID": lease}, end, math.inf)[0]

    def stream(self, request: _Json, until: float, *cancels: Cancel) -> Generator[Tuple[_Connection, _Json], None, None]:
        """Yields the results of a watch, and its connection, whose deadline is until. It ends if the watch fails or is canceled, and raises TimeoutError at the deadline."""
        endpoint, streaming = self.endpoints[self._current], False
        connection = _Connection(endpoint, self.tls, self._server_name)
        connection.deadline = min(until, time.monotonic() + self._attempt)
        try:
            # Without a leader the stream must end, not fall silent.
            headers = {**self._headers(endpoint, connection.deadline), "Grpc-Metadata-Hasleader": "true"}
            connection.request("POST", "/v3/watch", json.dumps({"createRequest": request}).encode(), headers)
            with contextlib.ExitStack() as exits:
                for cancel in cancels:
                    exits.enter_context(cancel._aborts(connection))
                response = exits.enter_context(connection.getresponse())
                while response.status == 200:
                    result = json.loads(response.readline() or "{}").get("result", {"canceled": True})
                    if result.get("canceled"):
                        break
                    if not streaming:
                        streaming, connection.deadline = True, until
                    yield connection, result
        except (TimeoutError, socket.timeout):  # the same since Python 3.10
            if streaming or time.monotonic() >= until:
                raise TimeoutError from None
            self._advance(endpoint)
        except (OSError, http.client.HTTPException, ValueError, _Failure):
            self._advance(endpoint)
        finally:
            connection.close()

    def _call(self, path: str, body: _Json, end: float, attempt: float) -> Tuple[_Json, int]:
        """Repeats the request until it is answered. Returns also how many attempts before were not, and may have been executed."""
        data = json.dumps(body).encode()
        unanswered, renewed, failures = 0, False, 0
        failed: Optional[_Failure] = None
        while True:
            endpoint = self.endpoints[self._current]
            deadline = min(end, time.monotonic() + min(attempt, self._attempt))
            try:
                return self._exchange(endpoint, path, data, self._headers(endpoint, deadline), deadline), unanswered
            except _Failure as failure:
                unanswered += failure.executed
                failed = _telling(failed, failure)
                deadline = time.monotonic() + min(attempt, self._attempt)
                if failure.silent and deadline < end:
                    self._renew(endpoint, deadline)
            except Refused as refused:
                if renewed or not self._user or not _unauthenticated(refused):
                    refused._unanswered = unanswered
                    raise
                self._token, renewed = None, True
                continue
            self._advance(endpoint)
            failures += 1
            pause = 0.0 if failures < max(2, len(self.endpoints)) else random.uniform(0.05, 0.1) * min(failures, 10)
            if time.monotonic() + pause >= end:
                error = Unreachable(f"etcd does not answer: {failed}")
                error._unanswered = unanswered
                raise error from failed.__cause__
            time.sleep(pause)

    def _advance(self, failed: _Endpoint) -> None:
        if self.endpoints[self._current] is failed:
            self._current = (self._current + 1) % len(self.endpoints)

    def _headers(self, endpoint: _Endpoint, deadline: float) -> Dict[str, str]:
        token = self._token
        if token is None:
            token = self._authenticate(endpoint, deadline)
        return {"Authorization": token} if token else {}

    def _authenticate(self, endpoint: _Endpoint, deadline: float) -> str:
        self._login = time.monotonic()
        try:
            login = json.dumps({"name": self._user, "password": self._password}).encode()
            token = str(self._exchange(endpoint, "/v3/auth/authenticate", login, {}, deadline)["token"])
        except Refused as refused:
            if "authentication is not enabled" not in str(refused):
                raise
            token = ""
        except _Failure as failure:
            raise _Failure(str(failure), False) from failure.__cause__
        self._token = token
        return token

    def _renew(self, endpoint: _Endpoint, deadline: float) -> None:
        """Logs in again if the token may be of before a restore, which etcd neither accepts nor refuses. It may also be good, and etcd slow."""
        if self._token and time.monotonic() > self._login + _LOGIN:
            with contextlib.suppress(Refused, _Failure):
                self._authenticate(endpoint, deadline)

    def _exchange(self, endpoint: _Endpoint, path: str, data: bytes, headers: Mapping[str, str], deadline: float) -> _Json:
        """Makes one attempt at one endpoint. http.client does not retry."""
        connection = endpoint.take() or _Connection(endpoint, self.tls, self._server_name)
        connection.deadline = deadline
        fresh, connected = connection.sock is None, False
        try:
            if fresh:
                connection.connect()
            connected = True
            connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
            with connection.getresponse() as response:
                text, status = response.read(), response.status
            answer = _object(text, status)
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            endpoint.close()  # the others are as old
            hint = _hint(error, endpoint.tls) if fresh else ""
            silent = fresh and connected and isinstance(error, (TimeoutError, socket.timeout))
            raise _Failure(f"{endpoint}: {_shown(str(error) or type(error).__name__)}{hint}", connected, silent) from error
        endpoint.idle.append((os.getpid(), time.monotonic(), connection))
        if status == 200:
            return answer
        code, message = int(answer.get("code", 2)), _shown(str(answer.get("message") or answer.get("error")))
        if status >= 500 or code in (1, 4) or "too many requests" in message:
            raise _Failure(f"{endpoint}: {message}", True)
        raise Refused(code, message)


def _object(text: bytes, status: int) -> _Json:
    """Reads an answer of etcd. Raises ValueError if it is not one."""
    if status == 400 and text.startswith(b"CommonName of client"):
        message = "etcd has authentication enabled, and its JSON gateway then refuses client certificates with a CN: use one without, and user and password"
        return {"code": 3, "message": message}
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        answer = answer.get("result", answer)  # of a stream
    if isinstance(answer, dict) and (status != 200 or "header" in answer):
        return answer
    gateway = ", there is no JSON gateway (etcd needs --enable-grpc-gateway)" if status == 404 else ""
    raise ValueError(f"not an answer of etcd{gateway}: HTTP {status}: {text[:200].decode('utf-8', 'replace').strip()}")


def _hint(error: Exception, tls: bool) -> str:
    """What may be wrong if a new connection ends without an answer."""
    ended = isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.BadStatusLine, ssl.SSLEOFError, ssl.SSLZeroReturnError))
    if not ended and getattr(error, "reason", "") != "WRONG_VERSION_NUMBER":
        return ""
    use = "not use TLS, or ask for a client certificate" if tls else "require https://"
    return f" (etcd may {use}, or have its JSON gateway elsewhere: see its --listen-client-http-urls)"


_Error = TypeVar("_Error", bound=Exception)


def _telling(first: Optional[_Error], last: _Error) -> _Error:
    """Which of two failures says more: the last one, unless it is a time-out."""
    return first if first is not None and isinstance(last.__cause__, (TimeoutError, socket.timeout)) else last


def _shown(text: str) -> str:
    """Untrusted text, bounded and in one line."""
    return repr(text[:500])[1:-1]


def _unauthenticated(refused: Refused) -> bool:
    return refused.code == 16 or any(text in str(refused) for text in ("user name is empty", "revision of auth store is old"))


def _batches(txns: Iterable[_Json]) -> Iterator[List[_Json]]:
    batch: List[_Json] = []
    most, size = 0, 0
    for txn in txns:
        ops, length = max(len(txn["success"]), len(txn["failure"])), len(json.dumps(txn))
        if batch and (len(batch) + 1 + max(most, ops) > _MAX_OPS or size + length > _MAX_BYTES):
            yield batch
            batch, most, size = [], 0, 0
        batch, most, size = [*batch, txn], max(most, ops), size + length
    if batch:
        yield batch


def _b64(text: str, errors: str = "strict") -> str:
    return base64.b64encode(text.encode("utf-8", errors)).decode()


def _text(encoded: str, errors: str = "replace") -> str:
    return base64.b64decode(encoded).decode("utf-8", errors)


def _put(key: str, value: str, **options: str) -> _Json:
    return {"requestPut": {"key": _b64(key), "value": _b64(value), **options}}


def _get(key: str, **options: Any) -> _Json:
    return {"requestRange": {"key": _b64(key), **options}}


def _delete(key: str) -> _Json:
    return {"requestDeleteRange": {"key": _b64(key, "surrogateescape")}}
