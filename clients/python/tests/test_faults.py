"""Losing locks, answers, members, logins and time."""

import contextlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from support import SOON, Etcd, Proxy, TestCase, b64, eventually, free_port
from unlocker_mutex import Held, Lock, Lost, Refused, Unreachable


class LossTest(TestCase):
    def lost(self, lock):
        eventually(lambda: lock.lost)
        return lock.lost.reason

    def test_the_keeper_renews_until_max_hold(self):
        client = self.connect()
        with self.assertRaises(Lost) as raised, client.lock("a", patience=6, max_hold=15) as lock:
            auto_unlock_at = float(self.etcd.keys()["a/auto_unlock_at"])
            locked_at = float(self.etcd.keys()["a/locked_at"])
            alert_at = self.etcd.keys()["a/alert_at"]
            eventually(lambda: float(self.etcd.keys()["a/auto_unlock_at"]) > auto_unlock_at + 1)
            lock.check()
            fields = self.etcd.keys()
            self.assertEqual(fields["a/alert_at"], alert_at)
            self.assertEqual(self.lost(lock), "deadline")
            self.assertLessEqual(float(self.etcd.keys()["a/auto_unlock_at"]), locked_at + 15.5)  # a renewal more would add seconds; two clocks are read
        self.assertEqual(raised.exception.reason, "deadline")
        eventually(lambda: self.etcd.keys() == {})

    def test_the_locks_of_a_client_are_renewed_in_one_transaction(self):
        client = self.connect()
        locks, _ = client.try_lock_all((str(n) for n in range(100)), patience=8, max_hold=60, backtrace=False)
        before = self.etcd.requests("Txn")
        time.sleep(9)  # three renewals, of which some are sent again on a busy machine
        self.assertTrue(all(lock.lost is None for lock in locks))
        self.assertLessEqual(self.etcd.requests("Txn") - before, 12)
        client.unlock_all(locks)

    def test_a_loss_is_noticed_with_its_cause(self):
        client = self.connect()
        for change, cause in [(lambda: self.etcd.delete("a/uuid"), "forced"), (lambda: self.etcd.put("a/uuid", "other"), "taken")]:
            lock = client.lock("a", patience=9, max_hold=60)
            change()
            self.assertEqual(self.lost(lock), cause)
            self.assertRaises(Lost, lock.check)
            self.assertRaises(Lost, lock.unlock)
            self.etcd.delete("a/uuid")
        lock = client.lock("a", patience=9, max_hold=60)
        self.etcd.post("/v3/maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE"})
        self.assertEqual(self.lost(lock), "no space")

    def test_alive_and_unlock_notice_a_loss(self):
        client = self.connect()
        for call in ("alive", "unlock"):
            for change, cause in [(lambda: self.etcd.delete("a/uuid"), "forced"), (lambda: self.etcd.put("a/uuid", "other"), "taken")]:
                lock = client.lock("a")
                change()
                with self.assertRaises(Lost) as raised:
                    getattr(lock, call)()
                self.assertEqual(raised.exception.reason, cause)
                self.etcd.delete("a/uuid")

    def test_the_block_raises_what_happened_in_it(self):
        client = self.connect()
        with self.assertRaises(KeyError), client.lock("a"):
            self.etcd.delete("a/uuid")
            raise KeyError
        with self.assertRaises(Lost), client.lock("a"):
            self.etcd.delete("a/uuid")

    def test_without_etcd_a_lock_is_lost_before_its_deadline(self):
        client = self.connect()
        lock = client.lock("a", patience=9, max_hold=60)
        deadline = float(self.etcd.keys()["a/auto_unlock_at"])
        self.pause(self.etcd)
        looked = time.time()
        while lock.lost is None:  # each look after the deadline shows the loss
            self.assertLess(looked, deadline)
            time.sleep(0.02)
            looked = time.time()
        self.assertEqual(lock.lost.reason, "unreachable")

    def test_a_process_that_was_suspended_knows_that_its_lock_is_lost(self):
        code = """if True:
            import sys, unlocker_mutex
            lock = unlocker_mutex.Client([sys.argv[1]]).lock("a", patience=6, max_hold=60)
            print("locked", flush=True)
            sys.stdin.readline()
            print(lock.lost.reason if lock.lost else "held", flush=True)"""
        process = subprocess.Popen([sys.executable, "-c", code, self.etcd.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with process:
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "locked\n")
            eventually(lambda: "a/alive_at" in self.etcd.keys())
            time.sleep(1)  # it has the answer, and renews again after a third of the patience
            process.send_signal(signal.SIGSTOP)
            time.sleep(6)
            process.stdin.write("\n")
            process.stdin.flush()
            process.send_signal(signal.SIGCONT)
            self.assertEqual(process.stdout.readline(), "deadline\n")

    def test_a_wall_clock_that_passes_the_deadline_counts(self):
        lock = self.connect().lock("a")
        real = time.time
        self.addCleanup(setattr, time, "time", real)
        time.time = lambda: real() + 115  # as after a suspension, in which the monotonic clock stops
        self.assertEqual(lock.lost.reason, "deadline")

    def test_the_keeper_does_not_renew_a_lock_that_was_lost_meanwhile(self):
        lock = self.connect().lock("a", patience=1, max_hold=60)
        real = time.time
        self.addCleanup(setattr, time, "time", real)
        time.sleep(0.1)  # until the keeper waits
        time.time = lambda: real() + 10  # as after a suspension
        eventually(lambda: lock._lost)  # it looks instead of renewing
        time.time = real
        self.assertEqual(lock.lost.reason, "deadline")

    def test_a_wall_clock_that_is_set_back_prolongs_nothing(self):
        lock = self.connect().lock("a", patience=1)
        real = time.time
        self.addCleanup(setattr, time, "time", real)
        time.time = lambda: real() - 3600
        eventually(lambda: lock.lost)

    def test_a_fork_shares_neither_connections_nor_renewals(self):
        client = self.connect()
        lock = client.lock("a", max_hold=60)
        child = os.fork()
        if child == 0:
            try:
                for _ in range(100):
                    client.lock("b", max_hold=60).unlock()
                code = 0 if lock not in client._background._locks else 2
            except BaseException:
                code = 3
            os._exit(code)
        for _ in range(100):
            lock.alive()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        lock.unlock()

    def test_a_child_of_the_holder_holds_nothing(self):
        lock = self.connect().lock("a", max_hold=60)
        for call in (lock.check, lock.alive, lock.unlock, lambda: lock.__exit__(None, None, None)):
            child = os.fork()
            if child == 0:
                try:
                    call()
                    code = 1
                except Lost as lost:
                    code = 0 if lost.reason == "forked" and lock.lost.reason == "forked" else 2
                except BaseException:
                    code = 3
                os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        child = os.fork()
        if child == 0:
            lock.__exit__(SystemExit, SystemExit(), None)  # as by sys.exit in the block
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertIn("a/uuid", self.etcd.keys())
        self.assertNotIn("a/alive_at", self.etcd.keys())
        lock.unlock()

    def program(self, code, *arguments):
        """Starts a program, and returns it when it has written a line."""
        process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), self.etcd.url, *arguments], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def test_sigterm_releases_what_is_held(self):
        code = """
            import signal, sys, threading, time
            from unlocker_mutex import Client
            end = threading.Event()
            if len(sys.argv) > 2:  # the program has a handler of its own
                signal.signal(signal.SIGTERM, lambda *_: end.set())
            client = Client(sys.argv[1:2], release_on_sigterm=True)
            threading.Thread(target=lambda: (client.lock("thread"), print("ready", flush=True), time.sleep(99)), daemon=True).start()
            kept = client.lock("kept")
            with client.lock("block", max_hold=600):
                end.wait() if len(sys.argv) > 2 else client.lock("kept")"""
        for arguments, status in ((), 143), (("own",), 0):
            process = self.program(code, *arguments)
            eventually(lambda: "block/uuid" in self.etcd.keys() and (arguments or self.etcd.requests("Watch") == 1))
            process.terminate()
            self.assertEqual(process.wait(SOON), status)
            self.assertEqual(self.etcd.keys(), {})

    def test_sigterm_releases_what_was_taken_without_an_answer(self):
        proxy = Proxy(self, self.etcd.port)
        proxy.lose = 10**9
        process = self.program("""
            import signal, sys
            from unlocker_mutex import Client
            client = Client(sys.argv[2:], release_on_sigterm=True)
            print("ready", flush=True)
            kept = client.lock("a")
            signal.pause()""", proxy.url)
        eventually(lambda: "a/uuid" in self.etcd.keys())
        proxy.lose = 0
        process.terminate()
        self.assertEqual(process.wait(SOON), 143)
        self.assertEqual(self.etcd.keys(), {})

    def test_the_documented_handler_of_sigterm_leaves_blocks(self):
        readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
        handler = re.search(r"^(import signal, sys; .*)$", readme, re.M)[1]
        process = self.program(handler + """
with __import__("unlocker_mutex").Client(sys.argv[1:2]).lock("a"):
    print("ready", flush=True)
    signal.pause()""")
        process.terminate()
        self.assertEqual(process.wait(SOON), 143)
        self.assertEqual(self.etcd.keys(), {})

    def test_sigterm_of_a_child_is_its_own(self):
        process = self.program("""
            import os, signal, sys
            from unlocker_mutex import Client
            lock = Client(sys.argv[1:2], release_on_sigterm=True).lock("a")
            if (child := os.fork()) == 0:
                try:
                    print("ready", os.getpid(), sep="\\n", flush=True)
                    signal.pause()
                finally:
                    lock.unlock()
            assert os.waitpid(child, 0)[1] == signal.SIGTERM
            lock.check()
            print("child", flush=True)
            signal.pause()""")
        os.kill(int(process.stdout.readline()), signal.SIGTERM)
        self.assertEqual(process.stdout.readline(), "child\n")
        self.assertIn("a/uuid", self.etcd.keys())

    def test_a_loss_is_reported_at_once_and_released_later(self):
        lock = self.connect(request_timeout=5).lock("a", patience=1)
        self.pause(self.etcd)
        eventually(lambda: lock.lost)
        with self.assertRaises(Lost) as raised:
            self.within(0, lock.unlock)
        self.assertEqual(raised.exception.reason, "deadline")
        self.etcd.signal(signal.SIGCONT)
        eventually(lambda: self.etcd.keys() == {})

    def test_a_loss_is_reported_whatever_else_fails(self):
        client = self.connect(request_timeout=2)
        lost, held = client.lock("lost", patience=1), client.lock("held")
        self.pause(self.etcd)
        eventually(lambda: lost.lost)
        with self.assertRaises(Lost) as raised:
            client.unlock_all([held, lost])
        self.assertEqual((raised.exception.name, raised.exception.reason), ("lost", "deadline"))
        self.etcd.signal(signal.SIGCONT)
        eventually(lambda: self.etcd.keys() == {})

    def remove(self, lock, prefix="/unlocker/audit/mutexes/", value=None, **record):
        """Removes a lock, and leaves a record."""
        record = {"uuid": lock.uuid, "when": "2026-11-23T10:00:00.123456789Z", "trigger": "expiry", "replica": "host_1", **record}
        self.etcd.delete(lock.name + "/uuid")
        self.etcd.post("/v3/kv/put", {"key": b64(f"{prefix}{lock.name}//{lock.token}"), "value": b64(value or json.dumps(record))})

    def test_a_loss_says_who_removed_the_lock(self):
        client, verdict = self.connect(audit_prefix="/audit"), {"reason": "patience"}
        said = "lock 'a' is lost: forced: removed by %s at 2026-11-23T10:00:00+00:00"
        with self.assertRaises(Lost) as raised, client.lock("a") as lock:
            self.remove(lock, "/audit/", verdict=verdict)
            lock.alive()
        self.assertEqual(str(raised.exception), said % "replica 'host_1', trigger 'expiry', rule 'patience',")
        with self.assertRaises(Lost) as raised, client.lock("a") as lock:
            self.remove(lock, "/audit/", trigger="manual", replica=1, who="ada@host", reason="\ud800\x1b[2J" + "y" * 9999)
        self.assertEqual(str(raised.exception), said % f"'ada@host', trigger 'manual', because '?\\x1b[2J{'y' * 195}',")
        self.assertEqual(len(raised.exception.removal().why), 4096)

    def test_a_record_is_found_later_and_where_it_is_by_default(self):
        lock = self.connect().lock("x" + "ü" * 256)
        self.etcd.delete(lock.name + "/uuid")
        lost = self.assertRaises(Lost, lock.alive) or lock.lost
        timer = threading.Timer(0.5, self.etcd.post, ("/v3/kv/put", {
            "key": b64(f"/unlocker/audit/mutexes/x{'ü' * 255}…//{lock.token}"),
            "value": b64(json.dumps({"uuid": lock.uuid, "when": "2026-11-23T10:00:00Z", "who": "ada"})),
        }))
        timer.start()
        self.addCleanup(timer.join)
        self.assertNotIn("removed", str(lost))
        self.assertEqual(lost.removal().who, "ada")
        self.assertIn("removed by 'ada', at", str(lost))

    def test_what_is_not_the_record_of_a_removal_is_ignored(self):
        client = self.connect()
        deep = '{"uuid": ' + "[" * 30000
        for record in ({"uuid": "other"}, {"when": None}, {"when": "0001-01-01T00:00:00+23:00"}, {"value": "[1]"}, {"value": deep}, {"why": "y" * 33000}):
            lock = client.lock("a")
            self.remove(lock, **record)
            self.assertRaises(Lost, lock.alive)
            self.assertIsNone(lock.lost.removal())
            self.assertEqual(str(lock.lost), "lock 'a' is lost: forced")

    def test_records_are_read_after_a_removal_only_and_not_for_long(self):
        client = self.connect()
        with mock.patch.object(Lock, "_record") as read:
            lock = client.lock("deadline", patience=1)
            eventually(lambda: lock.lost)
            self.assertIsNone(lock.lost.removal())
            with client.lock("b") as lock:
                lock.alive()
            self.assertIsNone(lock.lost.removal())
            lock = client.lock("a")
            self.etcd.delete("a/uuid")
            self.assertRaises(Lost, lock.alive)
            self.assertRaises(Lost, lock.check)
            self.assertRaises(Lost, lock.unlock)
            read.assert_not_called()
        lock = client.lock("b")
        self.etcd.delete("b/uuid")
        self.assertRaises(Lost, lock.alive)
        self.pause(self.etcd)
        self.assertIsNone(self.within(2, lock.lost.removal))
        self.assertIsNone(self.within(-3, lock.lost.removal))  # it is not read again

    def test_another_history_of_etcd_is_a_loss(self):
        # Another cluster; and one that was set back.
        for variable, value in (("_cluster", "1"), ("token", 1000)):
            for call in ("alive", "unlock"):
                lock = self.connect().lock(call + variable)
                setattr(lock, variable, value)
                with self.assertRaises(Lost) as raised:
                    getattr(lock, call)()
                self.assertEqual(raised.exception.reason, "restored")


class AnswersTest(TestCase):
    """An answer that is lost is asked for again, and what it said is known."""

    def setUp(self):
        super().setUp()
        self.proxy = Proxy(self, self.etcd.port)
        self.client = self.connect(self.proxy.url)

    def revision(self):
        return int(self.etcd.post("/v3/kv/range", {"key": b64("x")})["header"]["revision"])

    def test_lock(self):
        self.proxy.lose = 1
        lock = self.client.try_lock("a")
        self.assertEqual(self.proxy.lost, 1)
        key = self.etcd.post("/v3/kv/range", {"key": b64("/mutexes/a/uuid")})["kvs"][0]
        self.assertEqual((lock.token, key["version"]), (int(key["create_revision"]), "1"))
        lock.check()
        self.proxy.lose = 1
        self.assertRaises(Held, self.client.try_lock, "a")

    def test_many(self):
        held = self.client.lock("n7")
        self.proxy.lose = 1
        taken, others = self.client.try_lock_all(f"n{n}" for n in range(150))
        self.assertEqual((self.proxy.lost, len(taken), [e.holder.fields["uuid"] for e in others]), (1, 149, [held.uuid]))
        self.proxy.lose = 1
        self.client.unlock_all([*taken, held])
        self.assertEqual((self.proxy.lost, self.etcd.keys()), (2, {}))

    def test_alive(self):
        lock = self.client.lock("a")
        self.proxy.lose = 1
        lock.alive("half", patience=500)
        fields = self.etcd.keys()
        self.assertAlmostEqual(float(fields["a/auto_unlock_at"]) - float(fields["a/alive_at"]), 500, places=2)
        lock.alive()
        self.etcd.put("a/auto_unlock_at", "1700000000")  # by an operator
        lock.alive()
        self.assertGreater(float(self.etcd.keys()["a/auto_unlock_at"]), time.time() + 400)

    def test_unlock(self):
        lock = self.client.lock("a")
        self.proxy.lose = 1
        lock.unlock()
        self.assertEqual((self.proxy.lost, self.etcd.keys()), (1, {}))

    def test_a_waiter_recognizes_a_lock_that_a_late_attempt_takes(self):
        self.client.lock("a")
        own = uuid.uuid4()
        with mock.patch("uuid.uuid4", lambda: own), ThreadPoolExecutor() as pool:
            waiter = pool.submit(self.client.lock, "a")
            eventually(lambda: self.etcd.requests("Watch") == 1)
            self.etcd.put("a/uuid", str(own))
            self.assertEqual(waiter.result(30).uuid, str(own))

    def test_a_shorter_patience_counts_without_an_answer(self):
        lock = self.connect(self.proxy.url, request_timeout=2).lock("a")
        self.proxy.lose = 1000  # etcd executes the renewal
        self.assertRaises((Lost, Unreachable), lock.alive, patience=1, expect=1)
        eventually(lambda: lock.lost)
        self.assertLess(time.time(), float(self.etcd.keys()["a/auto_unlock_at"]) + 2)

    def test_what_a_late_attempt_takes_is_released(self):
        for timeout in (0, 3):
            proxy = Proxy(self, self.etcd.port)
            proxy.hold = threading.Event()
            held = self.connect().lock("b")
            client = self.connect(proxy.url, self.etcd.url, request_timeout=2)
            lock = client.lock("a", timeout=0)
            client._etcd._current = 0
            self.assertRaises(Held, client.lock, "b", timeout=timeout)
            lock.unlock()
            held.unlock()
            self.assertEqual(self.etcd.keys(), {})
            before = self.revision()
            proxy.hold.set()
            eventually(lambda: self.revision() > before)  # an attempt was executed
            time.sleep(0.2)
            eventually(lambda: self.etcd.keys() == {})

    def test_a_late_renewal_does_not_bring_back_its_deadline(self):
        lock = self.client.lock("a")
        late = lock._renewal(time.time(), 1.0, True, None)  # sent, and on its way
        lock.alive()
        deadline = self.etcd.keys()["a/auto_unlock_at"]
        self.assertNotIn("succeeded", self.etcd.post("/v3/kv/txn", late))
        self.assertEqual(self.etcd.keys()["a/auto_unlock_at"], deadline)
        lock.alive()

    def test_a_lock_that_a_failed_call_has_taken_is_released(self):
        client = self.connect(self.proxy.url, request_timeout=2)
        self.proxy.lose = 10**9
        before = self.revision()
        for call in (lambda: client.try_lock("a"), lambda: client.lock("b", timeout=2), lambda: client.try_lock_all(["c"])):
            self.assertRaises(Unreachable, self.within, 2, call)
        self.proxy.lose = 0
        self.assertGreaterEqual(self.revision() - before, 3)
        eventually(lambda: self.etcd.keys() == {})

    def test_a_release_that_failed_is_tried_again(self):
        client = self.connect(self.proxy.url)
        lock = client.lock("a")
        self.hurry(client, 0.5)
        self.pause(self.etcd)
        self.assertRaises(Unreachable, lock.unlock)
        self.etcd.signal(signal.SIGCONT)
        eventually(lambda: self.etcd.keys() == {})


class TimeTest(TestCase):
    def failure(self, call, *args, **options):
        try:
            self.within(options["timeout"], call, *args, **options)
        except Exception as error:
            return error

    def test_time_outs_hold(self):
        client, proxy = self.connect(), Proxy(self, self.etcd.port)
        patient, waiter = self.connect(), self.connect(proxy.url)
        patient.lock("held")
        own = client.lock("own")
        self.hurry(client, 0.6)
        self.assertRaises(Held, self.within, 3, patient.lock, "held", timeout=3)
        self.assertRaises((Held, Unreachable), self.within, 0.01, patient.lock, "held", timeout=0.01)  # etcd may take longer
        failed = []
        waiting = threading.Thread(daemon=True, target=lambda: failed.append(self.failure(waiter.lock, "held", timeout=6)))
        waiting.start()
        eventually(lambda: b'"created":true' in proxy.seen)
        self.pause(self.etcd)
        for call in (lambda: client.try_lock("x"), lambda: client.lock("x", timeout=0.3), lambda: client.try_lock_all(["x"]), own.alive):
            self.assertRaises(Unreachable, self.within, 0.6, call)
        waiting.join()
        self.assertIsInstance(failed[0], Held)

    def test_an_answer_that_trickles_does_not_prolong_a_time_out(self):
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        end = threading.Event()

        def trickle():
            while not end.is_set():
                with listener.accept()[0] as connection:
                    try:
                        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n" + b" " * 10000:
                            connection.send(bytes([byte]))
                            if end.wait(0.01):
                                return
                    except OSError:
                        pass

        thread = threading.Thread(daemon=True, target=trickle)
        thread.start()
        client = self.connect("http://127.0.0.1:%d" % listener.getsockname()[1], request_timeout=0.5)
        self.assertRaises(Unreachable, self.within, 0.5, client.try_lock, "a")
        end.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


class EndpointsTest(TestCase):
    def test_another_endpoint_is_asked_when_one_fails(self):
        stopped = Etcd(self)
        self.pause(stopped)
        dead = f"127.0.0.1:{free_port()}"
        client = self.connect(dead, stopped.url, self.etcd.url, request_timeout=18)
        with self.within(10, client.lock, "a") as lock:  # after a third of its time-out
            self.within(1, lock.alive)  # it stays with the one that answers
            proxy = Proxy(self, self.etcd.port)
            waiter = self.connect(proxy.url, self.etcd.url)
            waiter.try_lock("b").unlock()
            got = []
            thread = threading.Thread(daemon=True, target=lambda: got.append(waiter.lock("a", timeout=30)))
            thread.start()
            eventually(lambda: self.etcd.requests("Watch") == 1)
            proxy.close()
            eventually(lambda: self.etcd.requests("Watch") == 2)
        thread.join()
        got[0].check()

    def test_an_etcd_that_does_not_answer_says_why(self):
        tls, elsewhere = Etcd(self, tls=True), f"http://127.0.0.1:{free_port()}"
        with mock.patch.object(Etcd, "ready"):  # it looks at the gateway
            none, moved = Etcd(self, "--enable-grpc-gateway=false"), Etcd(self, "--listen-client-http-urls", elsewhere)
        garbage = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(garbage.close)

        def answer():
            while garbage.fileno() >= 0:
                with contextlib.suppress(OSError), garbage.accept()[0] as connection:  # who connected may have given up
                    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\x1b[2J\xff" + b"y" * 9999)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

        threading.Thread(daemon=True, target=answer).start()
        resolve = socket.getaddrinfo

        def unknown(host, *arguments, **options):
            if host == "nowhere.example":
                raise socket.gaierror(-2, "Name or service not known")
            return resolve(host, *arguments, **options)

        def says(url, message):
            options = {"ca_file": os.environ["CERTS"] + "/ca.pem"} if message == "may not use TLS" else {}
            for timeout in (0, 2):  # the last of many attempts has no time left
                def said():
                    with self.assertRaises(Unreachable) as raised:
                        self.connect(url, request_timeout=1.5, **options).lock("a", timeout=timeout)
                    error = raised.exception
                    self.assertTrue(str(error).isprintable())
                    self.assertLess(len(str(error)), 600)
                    return re.search(message, str(error)) and isinstance(error.__cause__, (OSError, ValueError))
                eventually(said, f"no error of {url} says {message}")  # a busy machine may time out first

        cases = {
            "Connection refused": f"127.0.0.1:{free_port()}", "certificate verify failed": tls.url, "nowhere.example:2379: .*not known": "nowhere.example",
            "may require https://": tls.url.replace("https", "http"), "may not use TLS": self.etcd.url.replace("http", "https"),
            r"--enable-grpc-gateway\): HTTP 404: 404 page not found$": none.url, "elsewhere: see its --listen-client-http-urls": moved.url,
            r"HTTP 200: \\x1b\[2J\ufffdy{100,}$": "http://127.0.0.1:%d" % garbage.getsockname()[1],
        }
        with mock.patch("socket.getaddrinfo", unknown), ThreadPoolExecutor(len(cases)) as pool:
            for result in [pool.submit(says, url, message) for message, url in cases.items()]:
                result.result()
        self.connect(elsewhere).lock("a").unlock()

    def test_https_with_client_certificates(self):
        certs = os.environ["CERTS"]
        etcd = Etcd(self, tls=True)
        client = self.connect(etcd.url, ca_file=f"{certs}/ca.pem", cert_file=f"{certs}/client.pem", key_file=f"{certs}/client.key")
        with client.lock("a"):
            self.assertIn("a/uuid", etcd.keys())
            self.assertRaises(Held, client.lock, "a", timeout=5)
        for options, message in [
            ({"ca_file": f"{certs}/other.pem", "cert_file": f"{certs}/client.pem", "key_file": f"{certs}/client.key"}, "certificate verify failed"),
            ({"ca_file": f"{certs}/ca.pem"}, "certificate required|bad certificate|reset|closed|EOF|Broken pipe"),
            ({"ca_file": f"{certs}/ca.pem", "server_name": "etcd.example.org"}, "mismatch"),
        ]:
            refused = self.connect(etcd.url, request_timeout=4, **options)

            def says():
                with self.assertRaises(Unreachable) as raised:
                    refused.try_lock("a")
                return re.search(message, str(raised.exception))

            eventually(says, f"no error says {message}")  # a busy machine may time out first
        with self.assertRaises((OSError, ssl.SSLError)):
            self.connect(etcd.url, ca_file=str(pathlib.Path(certs) / "none.pem"))


class LoginTest(TestCase):
    def setUp(self):
        self.etcd = Etcd(self, "--auth-token-ttl", "1")

    def guard(self):
        for name, password in (("root", "root"), ("ada", "secret")):
            self.etcd.post("/v3/auth/user/add", {"name": name, "password": password})
            self.etcd.post("/v3/auth/role/add", {"name": name})
            self.etcd.post("/v3/auth/user/grant", {"user": name, "role": name})
        end = b64("/mutexes0")
        self.etcd.post("/v3/auth/role/grant", {"name": "ada", "perm": {"permType": "READWRITE", "key": b64("/mutexes/"), "range_end": end}})
        self.etcd.post("/v3/auth/enable", {})

    def test_a_login_is_renewed(self):
        client = self.connect(user="ada", password="secret")
        first = client.lock("a", patience=12, max_hold=60)  # while authentication is off
        self.guard()
        first.alive()
        got = []
        waiter = threading.Thread(daemon=True, target=lambda: got.append(client.lock("a", timeout=30)))
        waiter.start()
        time.sleep(6)  # the token has expired, and renewals have passed
        first.check()
        first.unlock()
        waiter.join()
        self.within(6, got[0].unlock)

    def test_a_token_from_before_a_restore_is_replaced(self):
        """etcd neither accepts nor refuses one until its raft log is as long again."""
        for _ in range(100):
            self.etcd.put("x/y", "")
        self.guard()
        client = self.connect(user="ada", password="secret")
        client.lock("a").unlock()
        client._etcd._attempt = 1
        self.etcd.kill()
        shutil.rmtree(self.etcd.dir)
        self.etcd.run()
        self.etcd.ready()
        self.guard()
        self.assertRaises(Unreachable, client.lock, "a", timeout=3)  # it has just logged in, and etcd may be slow
        client._etcd._login = -math.inf
        self.within(6, client.lock, "a", timeout=20).unlock()
        token, client._etcd._login = client._etcd._token, -math.inf
        self.etcd.signal(signal.SIGSTOP)
        self.assertRaises(Unreachable, client.lock, "a", timeout=4)
        self.etcd.signal(signal.SIGCONT)
        self.assertGreater(client._etcd._login, 0, "no login was tried")
        self.assertEqual(client._etcd._token, token, "it may be good, and etcd was only slow")

    def test_the_gateway_refuses_certificates_with_a_name_once_authentication_is_enabled(self):
        certs, self.etcd = os.environ["CERTS"], Etcd(self, tls=True)
        self.guard()

        def connect(certificate, **options):
            files = {"cert_file": f"{certs}/{certificate}.pem", "key_file": f"{certs}/{certificate}.key"}
            return self.connect(self.etcd.url, ca_file=f"{certs}/ca.pem", **files, **options)

        for options in ({}, {"user": "ada", "password": "secret"}):
            with self.assertRaisesRegex(Refused, "client certificates with a CN: use one without, and user and password"):
                self.within(6, connect("client", **options).lock, "a")
        connect("nameless", user="ada", password="secret").lock("a").unlock()
        with self.assertRaisesRegex(Refused, "permission denied|user name is empty"):
            self.within(6, connect("nameless").lock, "a")

    def test_wrong_logins_are_refused_at_once(self):
        self.guard()
        for options, message in [
            ({"user": "ada", "password": "wrong"}, "authentication failed"),
            ({"user": "ada", "password": "secret", "prefix": "/other/"}, "permission denied"),
            ({}, "user name is empty"),
        ]:
            with self.assertRaisesRegex(Refused, message):
                self.within(6, self.connect(**options).lock, "a")


if __name__ == "__main__":
    unittest.main()
