"""Waiting in order, by tickets, and slots."""

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from queue import Queue
from unittest import mock

from support import SOON, Proxy, TestCase, b64, eventually
from unlocker_mutex import Cancel, Canceled, Held, Lost, Refused, Unreachable, _queue, aio

WAITERS = "/unlocker/waiters/mutexes/"


class QueueTest(TestCase):
    def setUp(self):
        super().setUp()
        self.taken = Queue()
        ttl = mock.patch.object(_queue, "_TTL", 3 * SOON)  # no ticket vanishes by itself
        ttl.start()
        self.addCleanup(ttl.stop)

    def found(self, name="a", prefix=WAITERS):
        """The tickets of a name, in their order."""
        keys = {"key": b64(f"{prefix}{name}//"), "rangeEnd": b64(f"{prefix}{name}/0"), "sortTarget": "CREATE"}
        return self.etcd.post("/v3/kv/range", keys).get("kvs", [])

    def tickets(self, name="a", prefix=WAITERS):
        return [json.loads(base64.b64decode(kv["value"])) for kv in self.found(name, prefix)]

    def forge(self, ticket, name="a"):
        self.etcd.post("/v3/kv/put", {"key": b64(f"{WAITERS}{name}//{ticket}"), "value": b64("nonsense")})

    def join(self, who, client=None, **options):
        """Adds a waiter, and returns when it has its ticket."""
        before, client = len(self.found()), client or self.connect()

        def wait():
            try:
                self.taken.put((who, client.lock("a", **options)))
            except Exception as error:
                self.taken.put((who, error))

        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: len(self.found()) > before)

    def next(self):
        """Who takes the lock next, or fails to, and after how long."""
        began = time.monotonic()
        who, lock = self.taken.get(timeout=SOON)
        return who, lock, time.monotonic() - began

    def serves(self, lock, *order):
        """Releases the lock again and again, and requires that the waiters get it in this order."""
        for want in order:
            lock.unlock()
            who, lock, _ = self.next()
            self.assertEqual(who, want, lock)
            self.assertFalse([key for key in self.etcd.keys(WAITERS) if key.endswith(lock.uuid)], "it deletes its ticket by that")
        lock.unlock()
        self.left()

    def left(self):
        eventually(lambda: self.etcd.keys(WAITERS) == {} and self.etcd.keys() == {})

    def process(self, code, *arguments):
        """Starts a program, which prints lines."""
        command = [sys.executable, "-c", "import sys\nfrom unlocker_mutex import Client\nclient = Client(sys.argv[1:2])\n" + code, self.etcd.url, *arguments]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for clean in (process.stdout.close, process.stdin.close, process.wait, process.kill):
            self.addCleanup(clean)
        return process


class OrderTest(QueueTest):
    def test_five_waiters_are_served_in_their_order(self):
        for slots in (None, 1):
            lock = self.connect().lock("a", slots=slots)
            for who in range(5):
                self.join(who, slots=slots)
            self.serves(lock, 0, 1, 2, 3, 4)

    def test_who_releases_the_lock_and_wants_it_again_is_the_last(self):
        client = self.connect()
        lock = client.lock("a")
        self.join(1)
        self.join(2)
        lock.unlock()
        who, lock, _ = self.next()
        self.assertEqual(who, 1)
        self.join(3, client)
        self.serves(lock, 2, 3)

    def test_a_newcomer_does_not_take_what_is_free_while_others_wait(self):
        for slots in (None, 2):
            self.forge("t")
            began = time.monotonic()
            lock = self.connect().lock("a", slots=slots)
            self.assertGreater(time.monotonic() - began, 0.9, "the other is passed over")
            lock.unlock()
            self.left()

    def test_without_waiters_a_lock_costs_one_request(self):
        client = self.connect()
        client.lock("b").unlock()
        before = self.etcd.requests("Txn"), self.etcd.requests("LeaseGrant")
        lock = client.lock("a")
        self.assertEqual((self.etcd.requests("Txn"), self.etcd.requests("LeaseGrant")), (before[0] + 1, before[1]))
        lock.unlock()

    def test_a_hand_off_costs_a_bounded_number_of_requests(self):
        client, holder = self.connect(), self.connect().lock("a")
        for who in range(10):
            self.join(who, client)
        before = self.etcd.requests("Txn") + self.etcd.requests("Watch")
        self.serves(holder, *range(10))
        # The release, the attempt of the first, the watch of the third and what it reads; and something for a busy machine.
        self.assertLess(self.etcd.requests("Txn") + self.etcd.requests("Watch") - before, 11 * 6)

    def test_a_ticket_says_who_waits(self):
        client, before = self.connect(owner="billing"), time.time()
        holder = client.lock("a", slots=1)
        self.join(1, client, slots=1, purpose="日" * 200)
        self.join(2, client, slots=1, owner="x" * 999)
        first, second = self.tickets()
        self.assertEqual({**first, "since": "", "hostname": ""}, {
            "uuid": first["uuid"], "hostname": "", "pid": str(os.getpid()), "owner": "billing", "purpose": "日" * 83, "since": "", "slots": 1,
        })
        self.assertRegex(first["since"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00$")
        self.assertAlmostEqual(time.mktime(time.strptime(first["since"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone, before, delta=SOON)
        self.assertEqual(second["owner"], "x" * 250)
        keys = self.found()
        self.assertEqual(len({kv["lease"] for kv in keys}), 1, "one lease for all waits of a process")
        self.assertEqual(base64.b64decode(keys[0]["key"]).decode(), f"{WAITERS}a//{first['uuid']}")
        holder.unlock()
        lock = self.next()[1]
        self.assertEqual(lock.uuid, first["uuid"])
        self.serves(lock, 2)

    def test_waiters_prefix(self):
        holder = self.connect().lock("a")
        threading.Thread(target=lambda: self.taken.put((1, self.connect(waiters_prefix="/queue").lock("a"))), daemon=True).start()
        eventually(lambda: len(self.tickets(prefix="/queue/")) == 1)
        self.serves(holder, 1)

    def test_a_ticket_says_which_locks_its_thread_holds(self):
        client = self.connect()
        holder = client.lock("a")
        other = client.lock("other")

        def work():
            with client.lock("outer") as outer, client.try_lock("released"):
                pass
            with client.lock("outer") as outer, client.try_lock("inner") as inner:
                more, _ = client.try_lock_all(["more"])
                held.extend([outer.uuid, inner.uuid, more[0].uuid])
                self.taken.put((1, client.lock("a")))
                client.unlock_all(more)

        held, thread = [], threading.Thread(target=work, daemon=True)
        thread.start()
        eventually(lambda: len(self.found()) == 1)
        self.join(2, client)
        first, second = self.tickets()
        self.assertEqual(first["holds"], held)
        self.assertNotIn("holds", second)
        other.unlock()
        self.serves(holder, 1, 2)
        thread.join()

    def test_a_deadlock_is_found(self):
        client, cancel = self.connect(), Cancel()

        def work(name, other):
            with client.lock(name):
                held.wait()
                self.taken.put(self.assertRaises(Canceled, client.lock, other, cancel=cancel))

        def deadlocks():
            command = [os.environ["UNLOCKER"], "deadlocks", "--etcd-endpoints", self.etcd.url, "-o", "json"]
            return subprocess.run(command, capture_output=True, text=True)

        held = threading.Barrier(2)
        for names in (("a", "b"), ("b", "a")):
            threading.Thread(target=work, args=names, daemon=True).start()
        found = eventually(lambda: (run := deadlocks()).returncode == 1 and run.stdout)
        self.assertIn('"a"', found)
        self.assertIn('"b"', found)
        cancel()
        for _ in range(2):
            self.taken.get(timeout=SOON)
        self.left()
        self.assertEqual(deadlocks().returncode, 0)

    def test_at_most_64_locks_are_named(self):
        client = self.connect()
        holder = client.lock("a")

        def work():
            client.try_lock_all((f"n{n}" for n in range(100)), backtrace=False)
            self.taken.put((1, client.lock("a")))

        threading.Thread(target=work, daemon=True).start()
        eventually(lambda: len(self.found()) == 1)
        self.assertEqual(len(self.tickets()[0]["holds"]), 64)
        holder.unlock()
        self.next()[1].unlock()

    def test_a_lease_is_kept_alive_during_a_wait_and_no_longer(self):
        with mock.patch.object(_queue, "_TTL", 3.0):
            client, holder, cancel = self.connect(), self.connect().lock("a"), Cancel()
            self.join(1, client, cancel=cancel)
            lease = self.found()[0]["lease"]
            kept = self.etcd.requests("LeaseKeepAlive")
            eventually(lambda: self.etcd.requests("LeaseKeepAlive") > kept + 5)  # for a second each
            self.assertEqual([kv["lease"] for kv in self.found()], [lease])
            cancel()
            self.assertIsInstance(self.next()[1], Canceled)
            eventually(lambda: lease not in str(self.etcd.post("/v3/lease/leases", {})))
            self.join(2, client)
            self.assertNotEqual(self.found()[0]["lease"], lease)
            self.serves(holder, 2)


class PassedOverTest(QueueTest):
    def test_a_process_that_is_stopped_is_passed_over_and_queues_again(self):
        for slots in (None, 1):
            holder = self.connect().lock("a", slots=slots)
            process = self.process(f"with client.lock('a', slots={slots}): print('taken', flush=True), sys.stdin.readline()")
            eventually(lambda: len(self.found()) == 1)
            self.assertEqual(self.etcd.post("/v3/lease/timetolive", {"ID": self.found()[0]["lease"]})["grantedTTL"], "10")
            self.join(2, slots=slots)
            self.join(3, slots=slots)
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            holder.unlock()
            who, lock, after = self.next()
            self.assertEqual(who, 2)
            self.assertGreater(after, 0.9)
            self.assertLess(after, 2 + 2)  # for a busy machine
            self.assertEqual(len(self.found()), 1, "its ticket is gone")
            process.send_signal(signal.SIGCONT)
            eventually(lambda: len(self.found()) == 2)
            lock.unlock()
            who, lock, after = self.next()
            self.assertEqual(who, 3)
            lock.unlock()
            self.assertEqual(process.stdout.readline(), "taken\n")
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait()
            self.left()

    def test_tickets_without_waiters_block_nobody_for_ever(self):
        first = base64.b64encode(WAITERS.encode() + b"a//\xff").decode()
        for others in (1, 3):
            holder = self.connect().lock("a")
            self.etcd.post("/v3/kv/put", {"key": first})
            for ticket in range(others):
                self.forge(ticket)
            with mock.patch.object(_queue, "_SILENCE", 1.0):
                self.join(1)
                self.join(2)
                for _ in range(2):
                    holder.unlock()
                    _, holder, _ = self.next()
                holder.unlock()
            self.assertNotIn(first, [kv["key"] for kv in self.found()], "passed over")
            self.assertEqual(len(self.found()), others + 1 - 2)

    def test_a_waiter_far_behind_passes_over_the_first_only_if_that_is_the_same_a_second_later(self):
        for ticket in range(3):
            self.forge(ticket)
        with mock.patch.object(_queue, "_PASS", 3.0):
            self.join(1, slots=2)
            time.sleep(0.5)  # in which it reads the queue twice
            began = time.monotonic()
            self.etcd.post("/v3/kv/deleterange", {"key": self.found()[0]["key"]})
            _, lock, _ = self.next()
        self.assertGreater(time.monotonic() - began, 3, "the lock was free, but it had another first")
        self.assertEqual(len(self.found()), 1)
        lock.unlock()

    def test_a_waiter_is_passed_over_once(self):
        for ticket in range(3):
            self.forge(ticket)
        queue, others = _queue._Waiter._queue, []

        def behind_another(waiter, txn, *over):
            queue(waiter, txn, *over)
            if over and not others:  # which passes the same one over first
                others.append(time.monotonic())
                self.etcd.post("/v3/kv/deleterange", {"key": self.found()[0]["key"]})

        with mock.patch.object(_queue._Waiter, "_queue", behind_another), mock.patch.object(_queue, "_SILENCE", 0.2):
            self.join(1)
            _, lock, _ = self.next()
        self.assertGreater(time.monotonic() - others[0], 0.9)
        self.assertEqual(len(self.found()), 1)
        lock.unlock()

    def test_the_tickets_of_a_process_that_died_vanish(self):
        holder = self.connect().lock("a")
        process = self.process("from unlocker_mutex import _queue; _queue._TTL = 2.0; client.lock('a')")
        eventually(lambda: len(self.found()) == 1)
        self.join(2)
        process.kill()
        process.wait()
        eventually(lambda: len(self.found()) == 1)
        self.serves(holder, 2)

    def test_a_malformed_lock_is_held(self):
        self.etcd.put("a/uuid", "")
        self.join(1)
        for _ in range(2):
            time.sleep(1)  # in which a client that takes it to be free sends many requests
            before = self.etcd.requests("Txn")
            time.sleep(1)
            self.assertLessEqual(self.etcd.requests("Txn") - before, 1)
            self.etcd.put("a/uuid", "")
        self.etcd.delete("a/uuid")
        self.next()[1].unlock()


class GivingUpTest(QueueTest):
    def test_whoever_gives_up_leaves_the_others_in_order(self):
        holder = self.connect().lock("a")
        for who in range(4):
            cancel, order = Cancel(), []
            for other in range(4):
                order += [other] if other != who else []
                self.join(other, **({"cancel": cancel} if other == who else {}))
            uuid = self.tickets()[who]["uuid"]
            cancel()
            self.assertIsInstance(self.next()[1], Canceled)
            eventually(lambda: uuid not in str(self.tickets()))
            for want in order:
                holder.unlock()
                got, holder, _ = self.next()
                self.assertEqual(got, want)
        self.serves(holder)

    def test_a_timeout_deletes_the_ticket_when_etcd_answers_again(self):
        proxy = Proxy(self, self.etcd.port)
        client, holder = self.connect(proxy.url), self.connect().lock("a")
        self.join(1, client, timeout=4)
        self.hurry(client, 1)
        proxy.hold = threading.Event()
        self.assertIsInstance(self.next()[1], (Held, Unreachable))
        self.assertEqual(len(self.found()), 1)
        proxy.hold.set()
        eventually(lambda: not self.found())
        holder.unlock()

    def test_a_wait_ends_in_time_and_says_who_has_the_lock(self):
        holder = self.connect().lock("a", purpose="first")
        self.join(1, purpose="second")
        with mock.patch.object(_queue, "_LAST", 1):  # for the answer that tells the holder
            self.join(2, timeout=4)
        holder.unlock()
        second = self.next()[1]
        who, held, _ = self.within(4, self.next)
        self.assertEqual((who, held.holder.fields["uuid"], held.holder.fields["purpose"]), (2, second.uuid, "second"))
        self.serves(second)

    def test_a_wait_says_who_had_the_lock_if_the_last_read_is_not_answered(self):
        def late(waiter):
            time.sleep(max(0.0, waiter._end - time.monotonic()))
            raise Unreachable("etcd does not answer")

        holder = self.connect().lock("a", purpose="first")
        with mock.patch.object(_queue._Waiter, "_describe", late), self.assertRaises(Held) as raised:
            self.connect().lock("a", timeout=0.5)
        self.assertEqual(raised.exception.holder.fields["purpose"], "first")
        holder.unlock()

    def test_a_late_attempt_in_turn_is_refused(self):
        client, holder = self.connect(), self.connect().lock("a")
        lock = client._new(["a"])[0]
        waiter = _queue._Waiter(lock, time.monotonic() + SOON, Cancel())
        waiter._try()
        late = lock._acquisition()  # sent, and on its way
        waiter._queue(late)
        self.assertEqual(len(self.found()), 1)
        waiter.close()
        lock._leave(False)  # it gives up
        eventually(lambda: not self.found())
        holder.unlock()
        self.assertNotIn("succeeded", self.etcd.post("/v3/kv/txn", late))
        self.left()

    def test_an_attempt_in_turn_that_is_repeated_elsewhere_takes_the_lock_once(self):
        proxy = Proxy(self, self.etcd.port)
        client, holder = self.connect(proxy.url, self.etcd.url), self.connect().lock("a")
        self.join(1, client)
        self.watches(proxy)
        self.hurry(client, 2)
        proxy.hold = threading.Event()
        before = self.etcd.requests("Txn")
        holder.unlock()
        lock = self.next()[1]
        self.assertGreater(lock._late, 0)
        lock.unlock()
        proxy.hold.set()
        eventually(lambda: self.etcd.requests("Txn") > before + 3)  # two releases, an attempt, and a late one
        time.sleep(0.5)
        self.left()

    def lose(self, proxy, client, after=0):
        """Loses the answer to the next transaction, or to a later one."""
        exchange, seen = client._etcd._exchange, []

        def counted(endpoint, path, *arguments):
            seen.extend([path] if path == "/v3/kv/txn" else [])
            proxy.lose = int(path == "/v3/kv/txn" and len(seen) == after + 1)
            return exchange(endpoint, path, *arguments)

        client._etcd._exchange = counted

    def watches(self, proxy):
        """Returns when a waiter has nothing to do."""
        eventually(lambda: b'"created":true' in proxy.seen)
        before = -1
        while before != (before := self.etcd.requests("Txn")):
            time.sleep(0.5)

    def test_the_answer_to_an_attempt_in_turn_is_lost(self):
        proxy = Proxy(self, self.etcd.port)
        client, holder = self.connect(proxy.url), self.connect().lock("a")
        self.join(1, client)
        self.watches(proxy)
        self.lose(proxy, client)
        holder.unlock()
        lock = self.next()[1]
        self.assertEqual((proxy.lost, self.etcd.keys()["a/uuid"]), (1, lock.uuid))
        self.serves(lock)

    def test_the_answer_that_shows_the_ticket_is_lost(self):
        proxy = Proxy(self, self.etcd.port)
        client, holder = self.connect(proxy.url), self.connect().lock("a")
        self.forge("t")
        self.lose(proxy, client, after=1)
        self.join(1, client)
        eventually(lambda: proxy.lost == 1)
        self.join(2)
        self.watches(proxy)
        holder.unlock()
        who, lock, after = self.next()
        self.assertEqual(who, 1)
        self.assertGreater(after, 0.9, "it is not the first")
        self.serves(lock, 2)

    def test_the_ticket_of_a_lock_whose_answer_was_lost_is_deleted_and_the_lock_is_not(self):
        proxy = Proxy(self, self.etcd.port)
        client, holder = self.connect(proxy.url), self.connect().lock("a")
        self.join(1, client)  # so that the process has a lease
        self.watches(proxy)
        self.lose(proxy, client)
        lock = client.lock("b")
        self.assertEqual(proxy.lost, 1)
        eventually(lambda: not self.found("b"))
        lock.alive()
        lock.unlock()
        self.serves(holder, 1)


class LostTicketTest(QueueTest):
    def test_whichever_ticket_is_deleted_all_get_the_lock(self):
        for lost in range(3):
            holder = self.connect().lock("a")
            for who in range(3):
                self.join(who)
            self.etcd.post("/v3/kv/deleterange", {"key": self.found()[lost]["key"]})
            served = set()
            for _ in range(3):
                holder.unlock()
                who, holder, after = self.next()
                served.add(who)
                self.assertLess(after, 2 + 4)
            self.assertEqual(served, {0, 1, 2})
            self.serves(holder)

    def test_a_waiter_without_its_lease_queues_again(self):
        client, holder = self.connect(), self.connect().lock("a")
        with mock.patch.object(_queue, "_TTL", 3.0):
            self.join(1, client)
            self.join(2, client)
            first = self.tickets()[0]["uuid"]
            lease = self.found()[0]["lease"]
            self.etcd.post("/v3/lease/revoke", {"ID": lease})
            self.assertEqual(self.found(), [])
            eventually(lambda: len(self.found()) == 2)
            self.assertNotIn(lease, [kv["lease"] for kv in self.found()])
            self.assertIn(first, [ticket["uuid"] for ticket in self.tickets()])
            holder.unlock()
            lock = self.next()[1]
            lock.unlock()
            self.next()[1].unlock()
            self.left()

    def test_a_lease_that_may_have_expired_is_replaced_and_the_place_is_kept(self):
        client, holder = self.connect(), self.connect().lock("a")
        self.join(1, client)
        self.join(2)
        before = self.found()
        client._background.leases._lease.lost()  # as after a while without an answer
        eventually(lambda: self.found()[0]["lease"] != before[0]["lease"])
        self.assertEqual([kv["create_revision"] for kv in self.found()], [kv["create_revision"] for kv in before])
        self.serves(holder, 1, 2)

    def test_a_newcomer_whose_process_has_lost_its_lease_gets_another(self):
        client, holder = self.connect(), self.connect().lock("a")
        self.join(1, client)
        self.etcd.post("/v3/lease/revoke", {"ID": self.found()[0]["lease"]})
        self.join(2, client)
        eventually(lambda: len(self.found()) == 2)
        holder.unlock()
        self.next()[1].unlock()
        self.next()[1].unlock()
        self.left()


class WithoutTicketsTest(QueueTest):
    def guard(self, *prefixes):
        for name in ("root", "ada"):
            self.etcd.post("/v3/auth/user/add", {"name": name, "password": name})
            self.etcd.post("/v3/auth/role/add", {"name": name})
            self.etcd.post("/v3/auth/user/grant", {"user": name, "role": name})
        self.grant("/mutexes/")
        self.etcd.post("/v3/auth/enable", {})
        self.etcd.token = self.etcd.post("/v3/auth/authenticate", {"name": "root", "password": "root"})["token"]

    def grant(self, prefix):
        permission = {"permType": "READWRITE", "key": b64(prefix), "range_end": b64(prefix[:-1] + "0")}
        self.etcd.post("/v3/auth/role/grant", {"name": "ada", "perm": permission})

    def waits(self, client, **options):
        """Several waits at once, all of which get the lock."""
        with self.assertLogs("unlocker_mutex") as logs:
            holder = client.lock("a", **options)
            threads = [threading.Thread(daemon=True, target=lambda: self.taken.put((1, client.lock("a", **options)))) for _ in range(4)]
            for thread in threads:
                thread.start()
            eventually(lambda: self.etcd.requests("Watch") >= 4)
            self.assertEqual(self.found(), [])
            for _ in threads:
                holder.unlock()
                holder = self.next()[1]
            holder.unlock()
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertRegex(logs.output[0], f"no tickets under {WAITERS}, so this process waits for locks in no order: ")

    def test_without_the_right_a_process_waits_in_no_order_and_says_so_once(self):
        self.guard()
        self.waits(self.connect(user="ada", password="ada"))

    def test_slots_without_the_right(self):
        self.guard()
        self.waits(self.connect(user="ada", password="ada"), slots=1)

    def test_tickets_are_tried_again_later(self):
        self.guard()
        with mock.patch.multiple(_queue, _PLAIN=1.0, _SILENCE=1.0), self.assertLogs("unlocker_mutex") as logs:
            client = self.connect(user="ada", password="ada")
            holder = client.lock("a")
            threading.Thread(target=lambda: self.taken.put((1, client.lock("a"))), daemon=True).start()
            eventually(lambda: self.etcd.requests("Watch") > 2)  # each ends after about a second
            self.assertEqual(self.found(), [])
            self.grant(WAITERS)
            eventually(lambda: len(self.found()) == 1)
            holder.unlock()
            self.next()[1].unlock()
        self.assertEqual(len(logs.output), 1, logs.output)

    def test_without_leases_a_process_waits_in_no_order(self):
        client = self.connect()
        with mock.patch.object(client._etcd, "grant", side_effect=Refused(8, "etcdserver: mvcc: database space exceeded")), self.assertLogs("unlocker_mutex"):
            holder = client.lock("a")
            threading.Thread(target=lambda: self.taken.put((1, client.lock("a"))), daemon=True).start()
            eventually(lambda: self.etcd.requests("Watch") > 0)
            self.assertEqual(self.found(), [])
            self.serves(holder, 1)

    def test_a_client_without_tickets_takes_what_is_free_and_costs_nobody_a_place(self):
        holder = self.connect().lock("a")
        for who in range(3):
            self.join(who)
        for other in range(3):
            self.etcd.put("a/uuid", f"other {other}")  # in the moment of the release
        time.sleep(2)
        self.assertEqual(len(self.found()), 3)
        for field in list(self.etcd.keys()):
            self.etcd.delete(field)
        who, lock, _ = self.next()
        self.assertEqual(who, 0)
        self.serves(lock, 1, 2)
        self.assertRaises(Lost, holder.unlock)

    def test_try_lock_takes_what_is_free(self):
        self.forge("t")
        client = self.connect()
        client.try_lock("a").unlock()
        client.lock("a", timeout=0).unlock()
        taken, _ = client.try_lock_all(["a"])
        client.unlock_all(taken)
        self.assertEqual(len(self.found()), 1)


class SlotsTest(QueueTest):
    def test_at_most_n_hold_a_name(self):
        clients, locks = [self.connect() for _ in range(3)], []
        for client in clients:
            before = self.etcd.requests("Txn")
            locks.append(client.lock("a", slots=3))
            self.assertEqual(self.etcd.requests("Txn") - before, 2, "one to read, one to take")
            self.assertEqual(self.etcd.keys()[locks[-1].name + "/uuid"], locks[-1].uuid)
        self.assertEqual(sorted(lock.name for lock in locks), ["a/0", "a/1", "a/2"])
        for call in (lambda: clients[0].try_lock("a", slots=3), lambda: clients[0].lock("a", slots=3, timeout=1)):
            with self.assertRaisesRegex(Held, "^the 3 slots of 'a' are held, one of them by 'python") as raised:
                call()
            self.assertEqual(raised.exception.slots, 3)
            self.assertIn(raised.exception.holder.name, ("a/0", "a/1", "a/2"))
        eventually(lambda: not self.found())
        smaller = next(lock for lock in locks if lock.name == "a/2")
        self.join(1, slots=2)
        smaller.unlock()
        time.sleep(1.5)
        self.assertTrue(self.taken.empty(), "it is of no use to one that gives less")
        again = clients[1].try_lock("a", slots=3)
        self.assertEqual(again.name, "a/2")
        freed = next(lock for lock in locks if lock is not smaller)
        freed.unlock()
        last = self.next()[1]
        self.assertEqual(last.name, freed.name)
        for lock in (again, last, *locks):
            if lock.lost is None:
                lock.alive()
                lock.unlock()
        self.left()

    def test_two_slots_that_are_freed_at_once_wake_two(self):
        client = self.connect()
        locks = [client.lock("a", slots=2) for _ in range(2)]
        for who in range(3):
            self.join(who, slots=2)
        client.unlock_all(locks)
        got = [self.next() for _ in range(2)]
        self.assertEqual({who for who, _, _ in got}, {0, 1})
        self.assertLess(max(after for _, _, after in got), 0.9, "none waits for the one before to be passed over")
        got[0][1].unlock()
        who, lock, _ = self.next()
        self.assertEqual(who, 2)
        lock.unlock()
        got[1][1].unlock()
        self.left()

    def test_never_more_than_n(self):
        inside, most, guard = [0], [0], threading.Lock()

        def work():
            client = self.connect()
            for _ in range(3):
                with client.lock("a", slots=2, timeout=SOON):
                    with guard:
                        inside[0] += 1
                        most[0] = max(most[0], inside[0])
                    time.sleep(0.01)
                    with guard:
                        inside[0] -= 1

        threads = [threading.Thread(target=work, daemon=True) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        self.assertEqual(most[0], 2)
        self.left()

    def test_a_thousand_slots_are_read_in_one_request(self):
        client = self.connect()
        for group in range(0, 1000, 100):
            puts = [{"requestPut": {"key": b64(f"/mutexes/a/{n}/uuid"), "value": b64("u")}} for n in range(group, group + 100) if n != 777]
            self.etcd.post("/v3/kv/txn", {"success": puts})
        before = self.etcd.requests("Txn")
        lock = client.lock("a", slots=1000)
        self.assertEqual((lock.name, self.etcd.requests("Txn") - before), ("a/777", 2))
        self.assertRaises(Held, client.try_lock, "a", slots=1000)
        self.join(1, client, slots=1000)
        lock.unlock()
        _, lock, _ = self.next()
        self.assertEqual(lock.name, "a/777")
        lock.unlock()

    def test_what_a_late_attempt_takes_of_another_slot_is_released(self):
        client = self.connect()
        lock = client._new(["a"], slots=2)[0]
        lock.name = "a/0"
        late = lock._acquisition()  # on its way
        lock._late += 1
        lock._move("a/1")
        self.assertEqual((lock.name, lock._late), ("a/1", 0))
        waiter = _queue._Waiter(lock, SOON + time.monotonic(), Cancel())
        waiter._free = {"a/1"}
        waiter._attempt()
        lock._leave(True)
        self.etcd.post("/v3/kv/txn", late)
        eventually(lambda: "a/0/uuid" not in self.etcd.keys())
        self.assertIn("a/1/uuid", self.etcd.keys())
        lock.check()
        lock.unlock()
        self.left()

    def test_an_attempt_without_an_answer_that_has_taken_a_slot_is_found(self):
        client = self.connect()
        lock = client._new(["a"], slots=2)[0]
        lock.name = "a/0"
        self.etcd.post("/v3/kv/txn", lock._acquisition())
        lock._late += 1
        lock._move("a/1")
        self.etcd.put("a/1/uuid", "other")
        client._take(lock, 5, Cancel())
        self.assertEqual((lock.name, self.etcd.keys()["a/0/uuid"]), ("a/0", lock.uuid))
        lock.unlock()

    def test_slots_refused(self):
        for slots in (0, -1, 1001):
            with self.assertRaisesRegex(ValueError, f"slots must be from 1 to 1000, not {slots}"):
                self.connect().lock("a", slots=slots)


class ForkTest(QueueTest):
    def test_a_child_shares_neither_lease_nor_holds(self):
        client = self.connect()
        outer, holder = client.lock("outer"), self.connect().lock("a")
        self.join(1, client)
        lease = self.found()[0]["lease"]
        child = os.fork()
        if child == 0:
            try:
                client.lock("a", timeout=SOON).unlock()
                os._exit(0)
            except BaseException:
                os._exit(3)
        eventually(lambda: len(self.found()) == 2)
        first, second = self.found()
        self.assertEqual(first["lease"], lease)
        self.assertNotEqual(second["lease"], lease)
        self.assertNotIn("holds", self.tickets()[1])
        self.join(2, client)
        self.assertEqual(self.found()[2]["lease"], lease)
        holder.unlock()
        self.next()[1].unlock()
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.next()[1].unlock()
        outer.unlock()
        self.left()


class AioTest(QueueTest):
    def run_async(self, test):
        client = aio.Client([self.etcd.url], request_timeout=SOON)
        self.addCleanup(client.close)
        return asyncio.run(test(client))

    async def tickets_are(self, n):
        await asyncio.get_running_loop().run_in_executor(None, eventually, lambda: len(self.found()) == n)

    def test_tasks_are_served_in_their_order(self):
        async def test(client):
            async def work(who):
                async with client.lock("a", slots=1):
                    served.append(who)

            served, tasks = [], []
            async with client.lock("a", slots=1):
                for who in range(5):
                    tasks.append(asyncio.ensure_future(work(who)))
                    await self.tickets_are(who + 1)
            await asyncio.gather(*tasks)
            self.assertEqual(served, [0, 1, 2, 3, 4])

        self.run_async(test)
        self.left()

    def test_a_canceled_task_leaves_no_ticket(self):
        async def test(client):
            async with client.lock("a"):
                task = asyncio.ensure_future(client.lock("a"))
                await self.tickets_are(1)
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await self.tickets_are(0)

        self.run_async(test)

    def test_a_ticket_says_which_locks_its_task_holds(self):
        async def test(client):
            async def nested():
                async with client.lock("inner") as inner:
                    held.append(inner.uuid)
                    async with client.lock("a"):
                        pass

            async def other():
                async with client.lock("a"):
                    pass

            held = []
            holder = await client.lock("a")
            unrelated = asyncio.ensure_future(nested())
            await self.tickets_are(1)
            tasks = [unrelated, asyncio.ensure_future(other())]
            await self.tickets_are(2)
            first, second = self.tickets()
            self.assertEqual(first["holds"], [holder.uuid, *held])  # the task has the locks of the one that created it
            self.assertEqual(second["holds"], [holder.uuid])
            await holder.unlock()
            await asyncio.gather(*tasks)

        self.run_async(test)


if __name__ == "__main__":
    unittest.main()
