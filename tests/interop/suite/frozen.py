"""A file system, or the device under it, that stands still under a running node, and goes on.

A file system is not frozen in mmap mode: there the writer appends by storing into a mapping, and would stand still in a page
fault, which nothing in the process can end; sends would time out at the client.
"""

import contextlib
import os
import threading
import time

from . import wire
from .agent import Failed
from .both_ways import ONE_INDEX, sha256
from .checks import Check, append_modes, expect, read_store
from .disks import LoopDisk
from .nodes import Kerolox

TOPIC = "Frozen"
IN_FLIGHT_MAX = 64
CLIENT_GIVES_UP = 3.0


class Sends:
    """Sends of one body each, side by side, and what each was answered."""

    def __init__(self, node, first, count):
        self.node = node
        self.answers = {}  # number: (code, remark, queue offset, seconds)
        self.threads = [threading.Thread(target=self._send, args=(n,)) for n in range(first, first + count)]
        for thread in self.threads:
            thread.start()

    def _send(self, number):
        since = time.monotonic()
        try:
            with wire.Connection(self.node.broker, timeout=30) as connection:
                code, remark, ext, _ = connection.ask(wire.SEND, wire.send_fields(TOPIC, 0), body_of(number))
            self.answers[number] = code, remark or "", ext.get("queueOffset"), time.monotonic() - since
        except OSError as why:
            self.answers[number] = None, str(why), None, time.monotonic() - since

    def finish(self):
        for thread in self.threads:
            thread.join()
        return self.answers


def body_of(number):
    return f"{number} ".encode() * 200


def frozen(folder, binary, append, device):
    with contextlib.ExitStack() as disks:
        outer = disks.enter_context(LoopDisk(folder, 512))
        # A frozen file system that holds another's image makes a device that answers nothing.
        inner = disks.enter_context(LoopDisk(os.path.join(folder, "inner"), 256, outer.mount)) if device else outer
        # Not what a probe of this disk finds: with fdatasync a write that stands still is late by itself, not its flush.
        sync_call = "fdatasync" if append == "mmap" else "o_dsync"
        node = Kerolox(folder, "sync", binary, ONE_INDEX, os.path.join(inner.mount, "store"), append, flush__sync_call=sync_call,
                       limits__put_wait_ms=200, flush__sync_timeout_ms=2500, limits__put_inflight_messages=IN_FLIGHT_MAX)
        node.start()
        pid = node.process.pid
        wire.create_topic(node, TOPIC, 1)
        acked = {}

        def keep(sends):
            answers = sends.finish()
            acked.update((n, int(offset)) for n, (code, _, offset, _) in answers.items() if code == wire.OK)
            return answers

        expect("sends before", {code for code, *_ in keep(Sends(node, 0, 20)).values()}, {wire.OK})
        wire.pull_raw(node, TOPIC, 0, 0, group="frozen_group")  # makes the group
        outer.freeze()
        try:
            # One that the log takes or tries to; what comes after finds it busy, or finds no place to wait.
            first = Sends(node, 100, 1)
            time.sleep(0.5)
            with wire.Connection(node.broker) as connection:
                since = time.monotonic()
                for number in range(200, 200 + 2 * IN_FLIGHT_MAX):
                    connection.send(wire.SEND, wire.send_fields(TOPIC, 0), body_of(number))
                later = [(*connection.read()[:2], time.monotonic() - since) for _ in range(2 * IN_FLIGHT_MAX)]
            asked = others_go_on(node)
            (first,) = keep(first).values()
        finally:
            outer.thaw()
        code, remark, _, seconds = first
        if code != wire.FLUSH_DISK_TIMEOUT or seconds >= CLIENT_GIVES_UP:
            raise Failed(f"the send that met the frozen disk: code {code} after {seconds:.2f} s, {remark}")
        note = f"code {code} after {seconds:.1f} s"
        tags = {}
        for code, remark, seconds in later:
            tag = remark.partition("]")[0].lstrip("[") if code == wire.SYSTEM_BUSY else f"code {code}"
            tags[tag] = tags.get(tag, 0) + 1
            if seconds >= CLIENT_GIVES_UP:
                raise Failed(f"a send waited {seconds:.2f} s for {tag}")
        if tags.keys() != {"TIMEOUT_CLEAN_QUEUE", "OVERLOAD"}:
            raise Failed(f"sends that came while the disk was frozen were answered {tags}")
        mended = mends(node, keep)
        expect("the process", node.process.pid, pid)
        node.check_alive()
        all_there(node, acked)
        node.stop()
        store = read_store(node.store, ONE_INDEX)
        return f"{note}, then {tags}, {asked} other requests answered, sends again after {mended:.1f} s; {store.summary()}"


def others_go_on(node):
    """Requests that need no disk, while it is frozen; how many."""
    count = 0
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        since = time.monotonic()
        expect("the route's queues", wire.route(node.name_server, TOPIC)["queueDatas"][0]["writeQueueNums"], 1)
        expect("the first message", wire.pull(node, TOPIC, 0, 0, 1)[0].queue_offset, 0)
        wire.commit(node, "frozen_group", TOPIC, 0, 5)
        expect("the committed offset", wire.consumer_offset(node, "frozen_group", TOPIC, 0), 5)
        if time.monotonic() - since > 2:
            raise Failed(f"four requests that need no disk took {time.monotonic() - since:.1f} s")
        count += 4
        time.sleep(0.05)
    return count


def mends(node, keep):
    """The seconds until sends are stored again, without anybody's help."""
    since = time.monotonic()
    number = 1000
    while True:
        (answer,) = keep(Sends(node, number, 1)).values()
        if answer[0] == wire.OK:
            return time.monotonic() - since
        if time.monotonic() - since > 20:
            raise Failed(f"still code {answer[0]} 20 s after the disk went on: {answer[1]}")
        number += 1
        time.sleep(0.1)


def all_there(node, acked):
    bodies = [sha256(record.body) for record in wire.pull_all(node, TOPIC, 0)]
    expect("bodies that are there twice", len(bodies) - len(set(bodies)), 0)
    for number, offset in acked.items():
        expect(f"message {number} at {offset}", bodies[offset], sha256(body_of(number)))


CHECKS = [
    *(Check(f"frozen/{mode}", "a file system stands still", lambda f, b, mode=mode: frozen(f, b, mode, False))
      for mode in append_modes() if mode != "mmap"),
    *(Check(f"frozen/{mode}", "a device stands still", lambda f, b, mode=mode: frozen(f, b, mode, True))
      for mode in append_modes()),
]
