"""What the tests need: an etcd of their own, the daemon, a proxy that loses answers, and raw requests."""

from __future__ import annotations

import base64
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import unlocker_mutex
from unlocker_mutex import Client

SOON = 30.0
unlocker_mutex._SETTLED = 1e6  # no client listens to questions where tests count requests


def free_port():
    """Returns a port that nobody else is given while this process lives: a socket that does not listen stays bound to it, which leaves it to a server."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
        s.detach()
        return port


def b64(text):
    return base64.b64encode(text.encode()).decode()


def eventually(condition, message="the condition did not hold in time"):
    end = time.monotonic() + SOON
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(message)
        time.sleep(0.02)
    return value


class Process:
    """A program that ends with the test."""

    def __init__(self, test, *command):
        self.command = command
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        test.addCleanup(self.log.close)
        test.addCleanup(self.kill)
        self.run()

    def run(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def signal(self, number):
        self.process.send_signal(number)


class Etcd(Process):
    def __init__(self, test, *flags, tls=False):
        scheme, certs = "https" if tls else "http", os.environ["CERTS"]
        self.port, peer = free_port(), free_port()
        self.url, peer = f"{scheme}://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        self.context = None
        if tls:
            flags += ("--cert-file", f"{certs}/server.pem", "--key-file", f"{certs}/server.key")
            flags += ("--trusted-ca-file", f"{certs}/ca.pem", "--client-cert-auth")
            self.context = ssl.create_default_context(cafile=f"{certs}/ca.pem")
            self.context.load_cert_chain(f"{certs}/client.pem", f"{certs}/client.key")
        self.dir = tempfile.mkdtemp()
        test.addCleanup(shutil.rmtree, self.dir)
        self.token = ""
        super().__init__(
            test, os.environ["ETCD"], "--data-dir", self.dir, "--log-level", "error", "--unsafe-no-fsync",
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--bcrypt-cost", "4",
            "--heartbeat-interval", "10", "--election-timeout", "100", *flags,
        )
        self.ready()

    def ready(self):
        """Waits for an answer for as long as etcd runs, which a busy machine may make long."""
        while not self.answers("/v3/kv/range", {"key": b64("ready")}):
            if self.process.poll() is not None:
                self.log.seek(0)
                raise AssertionError("etcd has ended: " + self.log.read())
            time.sleep(0.02)

    def answers(self, path, body):
        try:
            return self.post(path, body, timeout=1) is not None
        except OSError:
            return False

    def post(self, path, body, timeout=SOON):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Authorization": self.token} if self.token else {})
        with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
            return json.load(answer)

    def keys(self, prefix="/mutexes/"):
        """The values by their keys, without the prefix."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found = self.post("/v3/kv/range", {"key": b64(prefix), "range_end": b64(end)})
        return {base64.b64decode(kv["key"]).decode()[len(prefix) :]: base64.b64decode(kv.get("value", "")).decode() for kv in found.get("kvs", [])}

    def put(self, key, value):
        self.post("/v3/kv/put", {"key": b64("/mutexes/" + key), "value": b64(value)})

    def delete(self, key):
        self.post("/v3/kv/deleterange", {"key": b64("/mutexes/" + key)})

    def requests(self, method):
        """How many requests of a method etcd has begun."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=SOON) as answer:
            found = re.search(r'grpc_server_started_total\{grpc_method="%s",.*\} (\S+)' % method, answer.read().decode())
        return int(float(found[1]))


class Daemon(Process):
    """The daemon, with times that are short for a test."""

    def __init__(self, test, etcd):
        super().__init__(
            test, os.environ["UNLOCKER"], "serve", "--etcd-endpoints", etcd.url, "--ops-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0",
            "--reaper-freshness", "2s", "--reaper-grace", "2s", "--reaper-clock-tolerance", "1s", "--reaper-probe-interval", "1s",
            "--reaper-settle", "500ms",
        )
        eventually(lambda: "unlocker started" in pathlib.Path(self.log.name).read_text())


class Proxy:
    """Forwards connections to a port. lose is how many answers it will swallow by closing the connection, seen are the others.

    While hold, an event, is not set, requests wait; they arrive also if who sent them has given up.
    """

    def __init__(self, test, port):
        self.port, self.lose, self.lost, self.seen = port, 0, 0, b""
        self.hold = None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.threads = [threading.Thread(daemon=True, target=self.accept)]
        self.threads[0].start()
        test.addCleanup(self.close)

    def close(self):
        if self.hold:
            self.hold.set()
        for s in self.sockets:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()
        for thread in self.threads:
            thread.join()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return
            self.sockets += [client, server]
            answered = threading.Event()
            for pair in ((client, server, False, answered), (server, client, True, answered)):
                self.threads.append(threading.Thread(daemon=True, target=self.pump, args=pair))
                self.threads[-1].start()

    def pump(self, source, target, answers, answered):
        """etcd drops a request whose connection ends before its answer, so the end of one that was held waits for that."""
        held = False
        try:
            while data := source.recv(1 << 16):
                if answers and self.lose > 0:
                    self.lose, self.lost = self.lose - 1, self.lost + 1
                    break
                if self.hold and not answers and not self.hold.is_set():
                    held = True
                    self.hold.wait()
                    answered.clear()
                if answers:
                    answered.set()
                target.sendall(data)
                if answers:
                    self.seen += data
        except OSError:
            pass
        if answers:
            answered.set()
        elif held:
            answered.wait()
        for s in (source, target):
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class TestCase(unittest.TestCase):
    def setUp(self):
        self.etcd = Etcd(self)

    @staticmethod
    def hurry(client, timeout):
        """Makes a client give up so soon. What it took before had time."""
        client._timeout = client._etcd._timeout = timeout
        client._etcd._attempt = timeout / 2

    def connect(self, *urls, request_timeout=SOON, **options):
        """Returns a client that waits for a busy etcd."""
        client = Client(urls or [self.etcd.url], request_timeout=request_timeout, **options)
        self.addCleanup(client.close)
        return client

    def within(self, seconds, call, *args, **options):
        """Calls, and fails if it takes longer, with some time for a busy machine."""
        began = time.monotonic()
        try:
            return call(*args, **options)
        finally:
            self.assertLess(time.monotonic() - began, seconds + 4)

    def pause(self, etcd):
        etcd.signal(signal.SIGSTOP)
        self.addCleanup(etcd.signal, signal.SIGCONT)
        os.waitpid(etcd.process.pid, os.WUNTRACED)  # until each of its threads has stopped
