"""asyncio, and waits that are canceled."""

import asyncio
import inspect
import pathlib
import re
import threading
import time
import unittest

import unlocker_mutex
from support import SOON, Proxy, TestCase, eventually
from unlocker_mutex import Cancel, Canceled, Held, Lost, aio


class CancelTest(TestCase):
    def wait(self, cancel, **options):
        errors = []

        def wait():
            try:
                self.connect().lock("a", cancel=cancel, **options)
            except unlocker_mutex.MutexError as error:
                errors.append(error)

        thread = threading.Thread(daemon=True, target=wait)
        thread.start()
        return thread, errors

    def test_another_thread_cancels_a_wait(self):
        cancel, holder = Cancel(), self.connect().lock("a")
        waits = [self.wait(cancel), self.wait(cancel, timeout=SOON)]
        eventually(lambda: self.etcd.requests("Watch") == 2)
        cancel()
        for thread, errors in waits:
            self.within(0, thread.join)
            self.assertIsInstance(errors[0], Canceled)
        self.assertRaisesRegex(Canceled, "the wait for lock 'b' was canceled", self.connect().lock, "b", cancel=cancel)
        holder.unlock()
        self.assertEqual(self.etcd.keys(), {})

    def test_a_wait_for_etcd_is_canceled_too(self):
        self.pause(self.etcd)
        cancel = Cancel()
        client = self.connect(request_timeout=1)
        threading.Timer(0.5, cancel).start()
        self.assertRaises(Canceled, self.within, 2, client.lock, "a", cancel=cancel)


class AioTest(TestCase):
    def run_async(self, test, **options):
        client = aio.Client([options.pop("url", self.etcd.url)], **{"request_timeout": SOON, **options})
        self.addCleanup(client.close)
        return asyncio.run(test(client))

    async def eventually(self, condition):
        await asyncio.get_running_loop().run_in_executor(None, eventually, condition)

    def test_locks(self):
        async def test(client):
            async with client.lock("a", purpose="invoices", expect=0.5) as lock:
                self.assertIn("async with client.lock(", self.etcd.keys()["a/backtrace"])
                self.assertNotIn("unlocker_mutex", self.etcd.keys()["a/backtrace"])
                with self.assertRaises(Held):
                    await client.try_lock("a")
                await lock.alive("half", expect=0.1, patience=50)
                await self.eventually(lambda: "select" in self.etcd.keys().get("a/stack", ""))  # the event loop waits
                lock.check()
                self.assertEqual(self.etcd.keys()["a/status"], "half")
                self.assertGreater(lock.token, 0)
            self.assertEqual(lock.lost.reason, "released")
            b = await client.lock("b", timeout=5)
            taken, held = await client.try_lock_all(["b", "c", "d"])
            self.assertEqual(([lock.name for lock in taken], [e.holder.fields["uuid"] for e in held]), (["c", "d"], [b.uuid]))
            await client.unlock_all([b, taken[0]])
            await taken[1].unlock()
            self.assertEqual(self.etcd.keys(), {})
            with self.assertRaises(Lost) as raised:
                async with client.lock("a"):
                    self.etcd.delete("a/uuid")
            self.assertEqual(raised.exception.reason, "forced")
            with self.assertRaises(ValueError):
                await client.lock("a", patience=0)

        self.run_async(test)

    def test_waits_do_not_block_the_loop_or_each_other(self):
        async def test(client):
            async def work(n):
                async with client.lock("a"):
                    inside.append(n)
                    self.assertEqual(len(inside) % 2, 1, "one at a time")
                    await asyncio.sleep(0.01)
                    inside.append(n)

            inside = []
            await asyncio.gather(*(work(n) for n in range(20)))
            self.assertEqual(len(inside), 40)

        self.run_async(test)
        self.assertEqual(self.etcd.keys(), {})

    def test_a_canceled_wait_ends_at_once_and_takes_nothing(self):
        async def test(client):
            async with client.lock("a"):
                with self.assertRaises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.lock("a"), 1)
                task = asyncio.ensure_future(client.lock("a"))
                await self.eventually(lambda: self.etcd.requests("Watch") == 2)
                task.cancel()
                began = time.monotonic()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                self.assertLess(time.monotonic() - began, 2)
                await self.eventually(lambda: not any(t.name == "unlocker-mutex-aio" for t in threading.enumerate()))
            self.assertEqual(self.etcd.keys(), {})

        self.run_async(test)

    def test_what_a_canceled_call_takes_late_is_released(self):
        proxy = Proxy(self, self.etcd.port)

        async def test(client):
            await (await client.lock("warm")).unlock()
            for call in (lambda: client.try_lock("a"), lambda: client.try_lock_all(["b", "c"])):
                proxy.hold, before = threading.Event(), self.etcd.requests("Txn")
                task = asyncio.ensure_future(call())
                await asyncio.sleep(0.3)  # it is on its way
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                proxy.hold.set()
                await self.eventually(lambda: self.etcd.requests("Txn") > before + 1)
                await self.eventually(lambda: self.etcd.keys() == {})

        self.run_async(test, url=proxy.url)

    def test_a_lock_whose_result_meets_a_cancellation_is_released(self):
        async def test(client):
            task, loop = asyncio.ensure_future(client.lock("a")), asyncio.get_running_loop()
            call_soon = loop.call_soon_threadsafe
            loop.call_soon_threadsafe = lambda f, *arguments: call_soon(lambda: (f(*arguments), task.cancel()))
            with self.assertRaises(asyncio.CancelledError):
                await task
            loop.call_soon_threadsafe = call_soon
            await self.eventually(lambda: self.etcd.requests("Txn") == 2 and self.etcd.keys() == {})

        self.run_async(test)

    def test_a_canceled_block_releases_its_lock(self):
        async def test(client):
            async def work():
                async with client.lock("a"):
                    inside.set()
                    await asyncio.sleep(99)

            inside, task = asyncio.Event(), asyncio.ensure_future(work())
            await inside.wait()
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual(self.etcd.keys(), {})

        self.run_async(test)

    def test_names_are_those_of_the_thread_api(self):
        for mine, its in ((aio.Client, unlocker_mutex.Client), (aio.Lock, unlocker_mutex.Lock)):
            self.assertEqual({n for n in dir(mine) if n[0] != "_"}, {n for n in dir(its) if n[0] != "_"})
            for name, function in inspect.getmembers(mine, inspect.isfunction):
                self.assertTrue(name.startswith("_") or function.__doc__, name)
        self.assertEqual(set(unlocker_mutex.__all__) - set(aio.__all__), {"Cancel"})

    def test_the_example_of_the_readme_runs(self):
        readme = (pathlib.Path(__file__).parent.parent / "README.md").read_text()
        example = re.search(r"```python\n(import asyncio\n.*?)```", readme, re.S)[1].replace("http://127.0.0.1:2379", self.etcd.url)
        exec(example, {})
        self.assertEqual(self.etcd.keys(), {})


if __name__ == "__main__":
    unittest.main()
