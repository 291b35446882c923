import logging
import os

from unlocker_mutex import Client, Held, Lost, Unreachable

# The code of the page is here.

client = Client([os.environ["ETCD"]])


def holder():
    try:
        client.try_lock("invoices").unlock()
    except Held as held:
        return held.holder.fields["owner"]


def work():
    return holder()


assert try_both(client, "invoices", work) == "page.py"
assert holder() is None
other = Client([os.environ["ETCD"]], owner="other")
with other.lock("invoices"):
    assert try_both(client, "invoices", work) == "other"
away = Client(["http://127.0.0.1:1"], request_timeout=0.2)
assert try_both(away, "invoices", work) is None
assert both(client, "invoices", lambda lock: lock.check() or holder()) == "page.py"
assert holder() is None
