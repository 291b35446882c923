"""Waiting in order, by tickets, and slots."""

import asyncio
import base64
import json
import os
import threading
import time
import unittest
from queue import Queue
from unittest import mock

from support import SOON, TestCase, b64, eventually
from unlocker_mutex import Cancel, Canceled, Held, Lost, Refused, _queue, aio

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
