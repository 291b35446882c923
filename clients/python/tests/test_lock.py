"""Taking, renewing and releasing locks, and what is in etcd meanwhile."""

import contextlib
import inspect
import io
import math
import multiprocessing
import os
import pathlib
import pickle
import random
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from unittest import mock

import unlocker_mutex
import unlocker_mutex.aio
from support import Daemon, TestCase, b64, eventually
from unlocker_mutex import Client, Held, Holder, Lost, Refused, Removal, Unreachable


class LockTest(TestCase):
    def setUp(self):
        super().setUp()
        self.client = self.connect(owner="billing")

    def test_a_lock_has_the_fields_of_the_protocol(self):
        before = time.time()
        with self.client.lock("a/b", purpose="invoices", metadata={"ticket": "7"}) as lock:
            fields = {key[len("a/b/") :]: value for key, value in self.etcd.keys().items()}
            self.assertEqual(
                set(fields), {"uuid", "hostname", "pid", "locked_at", "alert_at", "auto_unlock_at", "owner", "purpose", "ticket", "backtrace"}
            )
            self.assertEqual((fields["uuid"], fields["owner"], fields["purpose"], fields["ticket"]), (lock.uuid, "billing", "invoices", "7"))
            locked_at = float(fields["locked_at"])
            self.assertTrue(before - 0.001 <= locked_at <= time.time())
            self.assertAlmostEqual(float(fields["alert_at"]) - locked_at, 60, places=2)
            self.assertAlmostEqual(float(fields["auto_unlock_at"]) - locked_at, 120, places=2)
            self.assertIn("with self.client.lock(", fields["backtrace"])
            self.assertNotIn("unlocker_mutex/__init__.py", fields["backtrace"])
            key = self.etcd.post("/v3/kv/range", {"key": b64("/mutexes/a/b/uuid")})["kvs"][0]
            self.assertEqual(lock.token, int(key["create_revision"]))
            self.assertIsNone(lock.lost)
        self.assertEqual(self.etcd.keys(), {})
        self.assertEqual(lock.lost.reason, "released")
        lock.unlock()  # again, which does nothing
        self.assertRaises(Lost, lock.check)

    def test_unlock_deletes_its_own_keys_only(self):
        self.etcd.put("a/b/uuid", "nested")
        self.etcd.put("a/foreign", "x")
        with self.client.lock("a"):
            pass
        self.assertEqual(self.etcd.keys(), {"a/b/uuid": "nested", "a/foreign": "x"})

    def test_a_failed_lock_tells_the_holder(self):
        self.etcd.put("a/purpose", "left over by an earlier holder")
        held = self.client.lock("a", patience=100, metadata={"x": "y"})
        for call in (self.client.try_lock, lambda name: self.client.lock(name, timeout=5)):
            with self.assertRaises(Held) as raised:
                call("a")
            holder = raised.exception.holder
            self.assertEqual((holder.name, holder.fields["uuid"], holder.fields["owner"]), ("a", held.uuid, "billing"))
            self.assertNotIn("purpose", holder.fields)
            self.assertEqual((holder.time("auto_unlock_at") - holder.time("locked_at")).total_seconds(), 100)
            self.assertRegex(str(raised.exception), r"^lock 'a' is held by 'billing' on '.*' pid '\d+' since \S+ until \S+$")
        held.unlock()

    def test_what_a_holder_wrote_cannot_break_a_line(self):
        self.etcd.put("a/uuid", "u")
        self.etcd.put("a/owner", "x\n\x1b[31m" + "y" * 5000)
        self.etcd.put("a/locked_at", "9" * 400)
        with self.assertRaises(Held) as raised:
            self.client.try_lock("a")
        self.assertTrue(str(raised.exception).isprintable())
        self.assertLess(len(str(raised.exception)), 400)

    def test_a_waiter_gets_the_lock_at_its_release_without_polling(self):
        first = self.client.lock("a")
        got = []
        waiter = threading.Thread(daemon=True, target=lambda: got.append((self.client.lock("a"), time.monotonic())))
        before = self.etcd.requests("Txn")
        waiter.start()
        eventually(lambda: self.etcd.requests("Watch") == 1)
        time.sleep(1)  # in which a client that polls sends requests
        self.assertEqual(self.etcd.requests("Txn"), before + 2, "without a ticket, and with one")
        first.unlock()
        released = time.monotonic()
        waiter.join()
        self.assertLess(got[0][1] - released, 10)
        self.assertEqual((self.etcd.requests("Txn"), self.etcd.requests("Watch")), (before + 4, 1))
        self.assertGreater(got[0][0].token, first.token)

    def test_a_waiter_without_a_ticket_does_not_try_when_it_sees_the_next_holder(self):
        self.client._plain = math.inf
        first = self.client.lock("a")
        uniform = random.uniform
        self.addCleanup(setattr, random, "uniform", uniform)
        random.uniform = lambda least, most: most  # so that the waiter tries last
        # For the next holder to come, also on a busy machine; and for the answer that tells who that is.
        with mock.patch.multiple(unlocker_mutex._queue, _JITTER=3, _LAST=4), ThreadPoolExecutor() as pool:
            waiter = pool.submit(self.client.lock, "a", timeout=12)
            eventually(lambda: self.etcd.requests("Watch") == 1)
            before = self.etcd.requests("Txn")
            first.unlock()
            self.etcd.put("a/uuid", "other")
            time.sleep(4)
            self.assertEqual(self.etcd.requests("Txn"), before + 1)
            with self.assertRaises(Held) as raised:
                waiter.result()
        self.assertEqual(raised.exception.holder.fields["uuid"], "other")

    def test_a_wait_survives_compaction_and_a_restart_of_etcd(self):
        first, got = self.client.lock("a"), []
        waiter = threading.Thread(daemon=True, target=lambda: got.append(self.client.lock("a", timeout=30)))
        waiter.start()
        eventually(lambda: self.etcd.requests("Watch") == 1)
        self.etcd.kill()
        self.etcd.run()
        self.etcd.ready()
        self.etcd.post("/v3/kv/compaction", {"revision": str(first.token)})
        first.unlock()
        waiter.join()
        self.assertIsNone(got[0].lost)

    def test_alive_moves_the_deadlines(self):
        with self.client.lock("a", expect=1, patience=7) as lock:
            time.sleep(1.5)
            lock.alive("2 of 3", expect=50, patience=100)
            fields = self.etcd.keys()
            alive_at = float(fields["a/alive_at"])
            self.assertAlmostEqual(float(fields["a/alert_at"]) - alive_at, 50, places=2)
            self.assertAlmostEqual(float(fields["a/auto_unlock_at"]) - alive_at, 100, places=2)
            self.assertEqual(fields["a/status"], "2 of 3")
            key = {n: self.etcd.post("/v3/kv/range", {"key": b64(f"/mutexes/a/{n}")})["kvs"][0]["mod_revision"] for n in ("alive_at", "auto_unlock_at")}
            self.assertEqual(key["alive_at"], key["auto_unlock_at"])
            time.sleep(6)  # until after its first deadline
            lock.check()
        self.assertEqual(self.etcd.keys(), {})

    def test_try_lock_all_takes_what_is_free_in_few_transactions(self):
        names = [f"n/{n}" for n in range(300)]
        held = [self.client.lock(name) for name in ("n/7", "n/250")]
        before = self.etcd.requests("Txn")
        taken, others = self.client.try_lock_all(names, metadata={"batch": "1"})
        self.assertLessEqual(self.etcd.requests("Txn") - before, 3)
        self.assertEqual([lock.name for lock in taken], [name for name in names if name not in ("n/7", "n/250")])
        self.assertEqual([(error.holder.name, error.holder.fields["uuid"]) for error in others], [(lock.name, lock.uuid) for lock in held])
        self.assertEqual({key: value for key, value in self.etcd.keys().items() if key.endswith("/uuid")}, {f"{lock.name}/uuid": lock.uuid for lock in taken + held})
        self.assertEqual(len({lock.uuid for lock in taken}), 298)
        self.client.unlock_all(taken + held)
        self.assertEqual(self.etcd.keys(), {})

    def test_transactions_stay_below_the_limits_of_etcd(self):
        taken, _ = self.client.try_lock_all((f"big {n}" for n in range(60)), metadata={"text": "x" * 60_000, **{f"f{n}": "" for n in range(31)}})
        self.assertEqual(len(taken), 60)
        self.client.unlock_all(taken)
        self.assertEqual(self.etcd.keys(), {})

    def test_the_stack_is_written_at_alert_at(self):
        # In one line, which is where the holder stands at alert_at even if the answer took longer.
        with self.client.lock("a", expect=0.3): stack = eventually(lambda: self.etcd.keys().get("a/stack"))  # this line
        self.assertIn("# this line", stack)
        with self.client.lock("b", expect=0.1, backtrace=False):
            time.sleep(0.5)
            self.assertEqual({key for key in self.etcd.keys()} & {"b/stack", "b/backtrace"}, set())
        self.assertEqual(self.etcd.keys(), {})

    def test_a_holder_that_is_asked_answers_and_renews_nothing(self):
        with mock.patch.object(unlocker_mutex, "_SETTLED", 0.1), self.client.lock("a", max_hold=600) as lock, self.client.lock("b", backtrace=False) as quiet:
            lock.alive("7 of 9")
            time.sleep(1)
            before = {key: value for key, value in self.etcd.keys().items() if key.startswith("a/")}
            def ask(held):
                self.etcd.post("/v3/kv/put", {"key": b64(f"/unlocker/ask/mutexes/{held.name}//{held.uuid}"), "value": b64("no JSON")})
            ask(lock)
            asked = time.time()
            after = eventually(lambda: (keys := self.etcd.keys()).get("a/answered_at") and keys)
            self.assertLess(time.time() - asked, 2)
            self.assertAlmostEqual(float(after["a/answered_at"]), asked, delta=2)
            self.assertIn("test_a_holder_that_is_asked", after["a/stack"])
            self.assertEqual(after["a/status"], "7 of 9")
            self.assertEqual({key: after[key] for key in before}, before, "an answer is no renewal")
            self.assertNotIn("b/answered_at", after, "it was not asked")
            for _ in range(20):
                ask(lock)
            ask(quiet)
            eventually(lambda: "b/answered_at" in self.etcd.keys())
            self.assertNotIn("b/stack", self.etcd.keys())
            self.assertEqual(self.etcd.keys()["a/answered_at"], after["a/answered_at"], "at most one in five seconds")
            eventually(lambda: self.etcd.keys()["a/answered_at"] != after["a/answered_at"])
            version = self.etcd.post("/v3/kv/range", {"key": b64("/mutexes/a/answered_at")})["kvs"][0]["version"]
            self.assertEqual(version, "2", "one for all that was asked meanwhile")
        self.assertEqual(self.etcd.keys(), {})

    def test_nonsense_is_refused(self):
        for options, message in [
            ({"patience": 0.5}, "patience must be from 1"),
            ({"expect": 0}, "expect must be from 0.001"),
            ({"expect": 5, "patience": 4}, "expect is more than patience, which needs max_hold"),
            ({"max_hold": float("nan")}, "max_hold must be from 1"),
            ({"timeout": -1}, "timeout must be at least 0"),
            ({"metadata": {"uuid": "x"}}, "metadata 'uuid' is a field of the protocol"),
            ({"metadata": {"identity": "x"}}, "metadata 'identity' is a field of the protocol"),
            ({"metadata": {"a/b": "x"}}, "metadata 'a/b'"),
            ({"metadata": {str(n): "" for n in range(33)}}, "more than 32"),
        ]:
            with self.assertRaisesRegex(ValueError, message):
                self.client.lock("a", **options)
        for name in ("", "/a", "a/", "a//b"):
            with self.assertRaisesRegex(ValueError, "is not a name"):
                self.client.lock(name)
        with self.assertRaisesRegex(ValueError, "twice"):
            self.client.try_lock_all(["a", "a"])
        for arguments, message in [
            ({"endpoints": []}, "endpoints must be"),
            ({"endpoints": "127.0.0.1:2379"}, "endpoints must be"),
            ({"endpoints": ["ftp://x"]}, "endpoint 'ftp://x' is not"),
            ({"prefix": "/x"}, "prefix must end with a slash"),
            ({"request_timeout": 0}, "request_timeout must be above 0"),
            ({"ca_file": "/ca.pem"}, "need endpoints that begin with https"),
        ]:
            with self.assertRaisesRegex(ValueError, message):
                Client(**arguments)

    def test_all_names_and_values_are_kept(self):
        name, purpose = "Grüße/ \n'\"", "日本"
        with self.client.lock(name, purpose=purpose):
            self.assertEqual(self.etcd.keys()[name + "/purpose"], purpose)

    def test_no_space(self):
        self.etcd.post("/v3/maintenance/alarm", {"action": "ACTIVATE", "alarm": "NOSPACE"})
        with self.assertRaises(Refused) as raised:
            self.client.try_lock("a")
        self.assertTrue(raised.exception.no_space)

    def test_errors_can_be_pickled_and_locks_say_why_not(self):
        lost = Lost("a", "forced", lambda: Removal(datetime.now(timezone.utc), "manual", "", "", "ada", "OPS-1"))
        lost.removal()
        for error in (lost, Lost("b", "taken"), Held(Holder("a", {"owner": "x"})), Refused(7, "denied"), Unreachable("etcd does not answer")):
            copy = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(copy), str(copy)), (type(error), str(error)))
            for name in ("name", "reason", "holder", "code"):
                self.assertEqual(getattr(copy, name, None), getattr(error, name, None))
        with self.client.lock("a") as lock:
            spawn = multiprocessing.get_context("spawn")
            for thing, message in ((lock, "lock 'a' cannot be pickled or copied: only this process holds it"), (self.client, "Make one in the other process")):
                with self.assertRaisesRegex(TypeError, message):
                    spawn.Process(target=print, args=(thing,)).start()

    def test_everything_public_is_documented(self):
        for module in (unlocker_mutex, unlocker_mutex.aio):
            for name in module.__all__:
                thing = getattr(module, name)
                self.assertTrue(thing.__doc__, name)
                for method, function in inspect.getmembers(thing, inspect.isfunction):
                    if not method.startswith("_") and function.__module__ == module.__name__:
                        self.assertTrue(function.__doc__, f"{name}.{method}")
                        if name in ("Client", "Lock") and method != "close":
                            self.assertRegex(function.__doc__, "[Rr]aises ", f"{name}.{method}")
        self.assertTrue(pathlib.Path(unlocker_mutex.__file__).with_name("py.typed").exists(), "PEP 561")


class ReadmeTest(TestCase):
    def test_the_example_runs(self):
        readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
        example = readme.split("```python\n")[1].split("```")[0].replace("http://127.0.0.1:2379", self.etcd.url)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(example, {})
        self.assertRegex(out.getvalue(), r"^(sending A-\d with fencing token \d+\n){3}$")


class DaemonTest(TestCase):
    def test_the_daemon_removes_the_lock_of_a_holder_that_is_gone(self):
        Daemon(self, self.etcd)
        client = self.connect()
        dead = client.lock("a", patience=2, metadata={"ticket": "7"})
        with client.lock("kept", patience=12, max_hold=60) as kept:
            with client.lock("a", timeout=30) as lock:
                self.assertGreater(lock.token, dead.token)
                self.assertIsNotNone(dead.lost, "lost before another holds it")
                self.assertRaises(Lost, dead.unlock)
                self.assertEqual(self.etcd.keys()["a/uuid"], lock.uuid)
            kept.check()
        self.assertEqual(self.etcd.keys(), {})

    def test_a_loss_says_which_user_removed_the_lock(self):
        with self.assertRaises(Lost) as raised, self.connect().lock("a/b") as lock:
            command = [os.environ["UNLOCKER"], "unlock", "a/b", "--uuid", lock.uuid, "--etcd-endpoints", self.etcd.url]
            subprocess.run([*command, "--yes", "--reason", "OPS-1"], check=True, capture_output=True)
        self.assertRegex(str(raised.exception), r"forced: removed by '\S+@\S+', trigger 'manual', because 'OPS-1', at \S+$")


if __name__ == "__main__":
    unittest.main()
