"""Drives the client by the commands of unlocker-conformance; docs/conformance.md describes them.

It drives the package that is installed, and where none is, the sources in this folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Dict

sys.path.append(str(Path(__file__).parent / "src"))

from unlocker_mutex import Client, Held, Lock, Lost, Unreachable  # noqa: E402

Json = Dict[str, Any]


class Driver:
    def __init__(self) -> None:
        self.client = Client(
            os.environ["UNLOCKER_ETCD_ENDPOINTS"].split(","),
            prefix=os.environ["UNLOCKER_PREFIX"],
            waiters_prefix=os.environ.get("UNLOCKER_WAITERS_PREFIX", ""),
            request_timeout=float(os.environ["UNLOCKER_ETCD_REQUEST_TIMEOUT"].rstrip("s")),
        )
        self.locks: Dict[str, Lock] = {}

    def lock(self, q: Json) -> Json:
        terms = {"expect": q["alert_after"], "patience": q["patience"], "purpose": q["purpose"], "slots": q.get("slots") or None}
        return self.taken(self.client.lock(q["name"], timeout=q["wait"], **terms))

    def try_lock_all(self, q: Json) -> Json:
        taken, held = self.client.try_lock_all(q["names"], expect=q["alert_after"], patience=q["patience"])
        return {"locks": [self.taken(lock) for lock in taken], "held": [{"name": h.holder.name, "holder": dict(h.holder.fields)} for h in held]}

    def taken(self, lock: Lock) -> Json:
        self.locks[lock.uuid] = lock
        return {"name": lock.name, "uuid": lock.uuid, "token": lock.token}

    def alive(self, q: Json) -> Json:
        self.locks[q["uuid"]].alive(expect=q["alert_after"], patience=q["patience"])
        return {}

    def unlock(self, q: Json) -> Json:
        self.locks[q["uuid"]].unlock()
        return {}

    def lost(self, q: Json) -> Json:
        lock, end = self.locks[q["uuid"]], time.monotonic() + q["wait"]
        while lock.lost is None and time.monotonic() < end:
            time.sleep(0.02)
        return {"lost": lock.lost is not None}

    def quit(self, q: Json) -> Json:
        return {}

    def execute(self, q: Json) -> Json:
        try:
            return {"ok": True, **getattr(self, q["op"])(q)}
        except Held as e:
            return {"ok": False, "error": "held", "message": str(e), "holder": dict(e.holder.fields)}
        except Lost as e:
            return {"ok": False, "error": "lost", "message": str(e)}
        except Unreachable as e:
            return {"ok": False, "error": "unavailable", "message": str(e)}
        except (KeyError, ValueError) as e:
            return {"ok": False, "error": "invalid", "message": str(e)}


if __name__ == "__main__":
    driver = Driver()
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps({"id": command["id"], **driver.execute(command)}), flush=True)
        if command["op"] == "quit":
            break
