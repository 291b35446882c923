import base64
import json
import logging
import os
import sqlite3
import urllib.request

from unlocker_mutex import Client, Lost

# The code of the page is here.

ETCD = os.environ["ETCD"]
client = Client([ETCD])


def remove(name):
    prefix = f"/mutexes/{name}/"
    key, end = (base64.b64encode(k.encode()).decode() for k in (prefix, prefix[:-1] + "0"))
    urllib.request.urlopen(ETCD + "/v3/kv/deleterange", json.dumps({"key": key, "range_end": end}).encode()).close()


led = []


def work(lock):
    led.append(lock.token)
    if len(led) == 2:
        return "done"
    remove("leader")
    while True:
        lock.check()


assert lead(client, "leader", work) == "done"
assert led[0] < led[1], led

db = sqlite3.connect(":memory:")
db.execute("CREATE TABLE reports (month TEXT PRIMARY KEY, total INTEGER, token INTEGER)")
db.execute("INSERT INTO reports VALUES ('2026-11', 0, 0)")
earlier = client.lock("reports")
save(db, earlier, "2026-11", 1)
remove("reports")
with client.lock("reports") as later:
    save(db, later, "2026-11", 2)
    save(db, later, "2026-11", 3)
    try:
        save(db, earlier, "2026-11", 4)
    except RuntimeError as error:
        print(error)
    else:
        raise AssertionError("an earlier holder wrote")
assert db.execute("SELECT total FROM reports").fetchone() == (3,)
