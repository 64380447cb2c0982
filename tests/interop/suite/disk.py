"""A disk that gets full, for real: a file system of its own in a file, mounted where only the node sees it.

The mount lives in the node's mount namespace and goes with its process, so nothing can be left behind; the checks reach
it through the node's /proc folder. Needs root.
"""

import os
import re
import subprocess
import threading
import time

from . import wire
from .agent import Failed
from .checks import Check, append_modes, expect, need_root, read_store
from .nodes import Kerolox, Sizes

# A new mount namespace has what is mounted when it is made, other checks' disks too, and would keep their file systems alive
# beyond their unmount. It lets go of them before it does anything else.
LET_GO = """grep -o ' /[^ ]*/suite-disk ' /proc/self/mountinfo | xargs -r -n 1 umount --lazy; """

TOPIC = "Disk"
EARLIEST = 32
MIB = 1 << 20
SIZES = Sizes(commitlog_file=8 * MIB, consumequeue_file=20_000, index_slots=5_000, index_units=20_000)
BODY = 64 << 10
# As the case asks: two looks of the default interval.
RESUMES_WITHIN = 20


class OwnDisk(Kerolox):
    """A node whose store lies on a small file system."""

    def __init__(self, folder, flush, binary, disk_len, append="buffered", settings=""):
        self.mount = os.path.join(folder, "disk")
        super().__init__(folder, flush, binary, SIZES, os.path.join(self.mount, "store"), append)
        with open(self.config, "a") as file:
            file.write(settings)
        self.image = os.path.join(folder, "image")
        with open(self.image, "wb") as file:
            file.truncate(disk_len)
        # Nothing is kept for root, as which the node runs here: it shall meet a full disk.
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", self.image], check=True)

    def start(self):
        script = LET_GO + 'mount -o loop "$1" "$2" && shift 2 && exec "$@"'
        self.process = self._spawn([
            "unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", self.image, self.mount,
            self.binary, "serve", "--config", self.config,
        ])
        return self.wait_ready(30)

    def inside(self, *names):
        """A path on the disk, as seen from here."""
        return os.path.join(f"/proc/{self.process.pid}/root{self.mount}", *names)

    def usage(self):
        """(bytes used, bytes available)."""
        stat = os.statvfs(self.inside())
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize, stat.f_bavail * stat.f_frsize

    def fill(self, name, length):
        with open(self.inside(name), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, length)

    def fill_to_percent(self, percent):
        used, free = self.usage()
        self.fill("filler", (used + free) * percent // 100 + MIB - used)

    def fill_to_the_last_block(self):
        for number, step in enumerate((MIB, 64 << 10, 4 << 10)):
            while True:
                try:
                    with open(self.inside(f"filler-{number}"), "ab") as file:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step)
                except OSError:
                    break
        used, free = self.usage()
        if free > 64 << 10:
            raise Failed(f"the disk has {free} bytes free after it was filled ({used} used)")

    def empty(self):
        for name in os.listdir(self.inside()):
            if name.startswith("filler"):
                os.unlink(self.inside(name))

    def start_refused(self):
        """Starts it where it cannot; what it says. The disk is emptied then, without the node."""
        script = LET_GO + 'mount -o loop "$1" "$2" && rm "$2"/filler* '
        try:
            self.start()
        except AssertionError as why:
            self.kill()
            subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", self.image,
                            self.mount], check=True)
            return str(why)
        raise Failed("it started though recovery had to write and there was no space")

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return file.read()


class Sender:
    """Sends to queue 0 and remembers what was acknowledged, by queue offset."""

    def __init__(self, node):
        self.node = node
        self.connection = wire.Connection(node.broker, 30)
        self.acked = {}
        self.sent = 0

    def send(self, topic=TOPIC, length=BODY):
        """(code, remark)."""
        self.sent += 1
        body = f"{self.sent:<{length}}".encode()
        code, remark, ext, _ = self.connection.ask(
            wire.SEND, wire.send_fields(topic, 0, {"KEYS": f"k{self.sent}"}), body)
        if code == wire.OK and topic == TOPIC:
            self.acked[int(ext["queueOffset"])] = body
        return code, remark

    def send_until(self, code, seconds, **how):
        deadline = time.monotonic() + seconds
        while True:
            got, remark = self.send(**how)
            if got == code:
                return remark
            if time.monotonic() > deadline:
                raise Failed(f"still code {got} after {seconds} s, expected {code}: {remark}")
            time.sleep(0.2)

    def wait_until_found(self):
        """The last message is in its queue and in the index: the files of both are there."""
        deadline = time.monotonic() + 30
        while not wire.query_by_key(self.node, TOPIC, f"k{self.sent}"):
            if time.monotonic() > deadline:
                raise Failed(f"the key k{self.sent} is not in the index after 30 s")
            time.sleep(0.05)
        self.check_all_readable()

    def check_all_readable(self, first=0):
        """Everything acknowledged from queue offset `first` on is served, but for what has expired meanwhile."""
        offset = first
        deadline = time.monotonic() + 30
        while offset <= max(self.acked):
            try:
                records = wire.pull(self.node, TOPIC, 0, offset)
            except wire.Refused as why:
                # The unit of a message may be a moment behind its answer.
                if why.code not in (19, 20, 21) or why.code != 19 and first == 0 or time.monotonic() > deadline:
                    raise Failed(f"acknowledged at {offset}, not served: {why}") from None
                time.sleep(0.1)
                offset = max(offset, min_offset(self.node))
                continue
            for record in records:
                if record.queue_offset in self.acked and record.body != self.acked[record.queue_offset]:
                    raise Failed(f"the message at {record.queue_offset} is not what was acknowledged there")
                # Messages of a segment that has just gone are stepped over; the queue's beginning follows.
                while record.queue_offset != offset and record.queue_offset > min_offset(self.node):
                    if time.monotonic() > deadline:
                        raise Failed(f"asked for {offset}, got {record.queue_offset}")
                    time.sleep(0.1)
                offset = record.queue_offset + 1


def same_process(node, pid):
    node.check_alive()
    expect("the node's process", node.process.pid, pid)


def warning_level(folder, binary):
    """T12: the warning level and back, without a restart."""
    need_root()
    refused = os.path.join(folder, "refused.toml")
    with open(refused, "w") as file:
        file.write("[disk]\nwarning_percent = 98\n")
    check = subprocess.run([binary, "check-config", refused], capture_output=True, text=True)
    if check.returncode == 0 or "35 to 90" not in check.stdout + check.stderr:
        raise Failed(f"a warning level of 98 %: exit code {check.returncode}, {check.stdout}{check.stderr}")
    node = OwnDisk(folder, "async", binary, 512 * MIB)
    node.start()
    pid = node.process.pid
    if not re.search(r"disk levels .*refused above 90 %", node.log()):
        raise Failed(f"the log does not state the level in force: {node.log_tail()}")
    sender = Sender(node)
    expect("a send on an empty disk", sender.send()[0], wire.OK)
    node.fill_to_percent(91)
    remark = sender.send_until(wire.SERVICE_NOT_AVAILABLE, RESUMES_WITHIN)
    for part in (os.path.join(node.store, "commitlog"), "% used", "90 %"):
        if part not in remark:
            raise Failed(f"the remark lacks {part!r}: {remark}")
    sender.check_all_readable()
    expect("a send while the disk is full", sender.send()[0], wire.SERVICE_NOT_AVAILABLE)
    node.empty()
    since = time.monotonic()
    sender.send_until(wire.OK, RESUMES_WITHIN)
    took = time.monotonic() - since
    same_process(node, pid)
    sender.check_all_readable()
    node.stop()
    return f"taken again after {took:.1f} s"


def no_space(mode, flush):
    """T13: not a byte left under a running node. No look at the disk helps: the writes themselves must fail well."""

    def deed(folder, binary):
        need_root()
        node = OwnDisk(folder, flush, binary, 256 * MIB, mode, "\n[retention]\ncheck_interval_ms = 3600000\n")
        node.start()
        pid = node.process.pid
        sender = Sender(node)
        expect("a send on an empty disk", sender.send()[0], wire.OK)
        # What the first message needs beside its segment must not meet the full disk: then nothing at all is taken.
        sender.wait_until_found()
        node.fill_to_the_last_block()
        codes = [sender.send()[0] for _ in range(300)]
        stored = codes.index(next(code for code in codes if code != wire.OK)) if any(codes) else len(codes)
        if not 0 < stored < 300 or set(codes[stored:]) - {1, wire.SERVICE_NOT_AVAILABLE}:
            raise Failed(f"{stored} sends stored, then codes {sorted(set(codes[stored:]))}; one segment holds 127")
        same_process(node, pid)
        # What needs a file: a topic, a queue's first unit, a group's table. Refused or done, and nobody dies of it.
        for number in range(3):
            code, _ = sender.send(topic=f"New{number}", length=10)
            if code == wire.OK:
                raise Failed("a message in a topic that no disk holds was acknowledged")
        try:
            wire.create_topic(node, "Made", 1)
            raise Failed("a topic was made on a full disk")
        except wire.Refused:
            pass
        same_process(node, pid)
        node.empty()
        since = time.monotonic()
        sender.send_until(wire.OK, RESUMES_WITHIN)
        took = time.monotonic() - since
        wire.create_topic(node, "Made", 1)
        for _ in range(200):
            expect("a send after space was freed", sender.send()[0], wire.OK)
        same_process(node, pid)
        sender.check_all_readable()
        # Full once more, and killed: what was acknowledged in this process's care is there after a start.
        if flush == "sync":
            node.fill_to_the_last_block()
            while sender.send()[0] == wire.OK:
                pass
            node.kill()
            said = node.start_refused()
            if "free space" not in said:
                raise Failed(f"a start without space does not say what to do: {said}")
            node.start()
            sender.connection = wire.Connection(node.broker, 30)
            sender.check_all_readable()
            sender.send_until(wire.OK, RESUMES_WITHIN)
        log_from = len(node.log())
        node.stop()
        if "the next start recovers" in node.log()[log_from:]:
            raise Failed(f"the stop was not clean: {node.log_tail()}")
        return f"{stored} stored, taken again after {took:.1f} s"

    return deed


def oldest_go(folder, binary):
    """Like T20, with space as the reason: more is sent than the disk holds, and the oldest segments make room."""
    need_root()
    node = OwnDisk(folder, "async", binary, 256 * MIB, settings="\n[retention]\ncheck_interval_ms = 300\nfile_pause_ms = 10\n")
    node.start()
    pid = node.process.pid
    sender = Sender(node)
    sender.send()
    first = earliest(node)
    pulled = Puller(node)
    pulled.thread.start()
    refused = 0
    deadline = time.monotonic() + 120
    while len(sender.acked) < 5_000 and time.monotonic() < deadline:  # 312 MiB
        code, remark = sender.send()
        # A sender may fill the disk before the node looks again: then the segment that does not fit is the reason.
        full = code == wire.SERVICE_NOT_AVAILABLE or code == wire.SYSTEM_ERROR and "free space on its disk" in remark
        if full:
            refused += 1
            time.sleep(0.05)
        elif code not in (wire.OK, wire.SYSTEM_BUSY):
            raise Failed(f"code {code}: {remark}")
    same_process(node, pid)
    sender.send_until(wire.OK, RESUMES_WITHIN)
    pulled.over.set()
    pulled.thread.join(30)
    if pulled.error or not pulled.count:
        raise Failed(f"a consumer that read meanwhile: {pulled.error or 'got nothing'}")
    low = min_offset(node)
    if low == 0 or earliest(node) <= first or len(sender.acked) < 5_000:
        raise Failed(f"the queue begins at {low} after {len(sender.acked)} messages on a disk of 256 MiB")
    deadline = time.monotonic() + RESUMES_WITHIN
    while (usage := node.usage())[0] * 100 > 91 * sum(usage):
        if time.monotonic() > deadline:
            raise Failed(f"{usage[0]} bytes are used and {usage[1]} free: nothing made room")
        time.sleep(0.1)
    sender.check_all_readable(low)
    forced = node.log().count("forced=true")
    node.stop()
    return f"{forced} segments made room, {refused} sends refused, queue now from {low}"


def min_offset(node):
    return int(wire.request(node.broker, wire.MIN_OFFSET, {"topic": TOPIC, "queueId": "0"})[0]["offset"])


def earliest(node):
    return int(wire.request(node.broker, EARLIEST, {"topic": TOPIC, "queueId": "0"})[0]["timestamp"])


class Puller:
    """Reads along, from the oldest message on; what is gone before it was read is stepped over."""

    def __init__(self, node):
        self.node = node
        self.over = threading.Event()
        self.count = 0
        self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        offset = 0
        try:
            with wire.Connection(self.node.broker, 30) as connection:
                while not self.over.is_set():
                    code, remark, ext, body = connection.ask(wire.PULL, {
                        "consumerGroup": "disk_reader", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset),
                        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
                        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
                    })
                    if code == wire.OK:
                        records = wire.records(body)
                        for record in records:
                            if not record.body.decode().strip().isdigit():
                                raise Failed(f"offset {record.queue_offset}: {record.body[:20]}")
                        self.count += len(records)
                        # A slow one, so that it is overtaken.
                        time.sleep(0.02)
                    elif code not in (19, 20, 21):
                        raise Failed(f"code {code}: {remark}")
                    offset = int(ext["nextBeginOffset"])
                    if code == 19:
                        time.sleep(0.02)
        except Exception as why:  # told by who waits for this thread
            self.error = why


def killed_while_forced(folder, binary):
    """A kill in the middle of deletions leaves a store without holes."""
    need_root()
    settings = "\n[retention]\ncheck_interval_ms = 300\nfile_pause_ms = 200\n"
    node = OwnDisk(folder, "sync", binary, 128 * MIB, settings=settings)
    node.start()
    sender = Sender(node)
    rounds = 0
    deadline = time.monotonic() + 100
    while rounds < 3 and time.monotonic() < deadline:
        gone = node.log().count("segment deleted")
        while node.log().count("segment deleted") <= gone and time.monotonic() < deadline:
            sender.send()
        node.kill()
        node.start()
        rounds += 1
        sender.connection = wire.Connection(node.broker, 30)
        low = min_offset(node)
        sender.check_all_readable(low)
        sender.send_until(wire.OK, RESUMES_WITHIN)
    expect("kills", rounds, 3)
    copied = os.path.join(folder, "copy")
    node.kill()
    node.start()
    subprocess.run(["cp", "-r", "--sparse=always", node.inside("store"), copied], check=True)
    node.stop()
    store = read_store(copied, SIZES)
    return f"{node.log().count('segment deleted')} segments deleted; {store.summary()}"


def no_space_for_a_queue(folder, binary):
    """Full before the queue's and the index's first files are made: the log has room, what is made of it has none."""
    need_root()
    node = OwnDisk(folder, "sync", binary, 256 * MIB, "buffered", "\n[retention]\ncheck_interval_ms = 3600000\n")
    node.start()
    pid = node.process.pid
    sender = Sender(node)
    wire.create_topic(node, TOPIC, 4)
    node.fill_to_the_last_block()
    codes = []
    while wire.SERVICE_NOT_AVAILABLE not in codes:
        codes.append(sender.send()[0])
        if len(codes) == 300:
            raise Failed(f"300 sends were answered with {sorted(set(codes))} though no queue can be written")
        time.sleep(0.01)
    if set(codes[:-1]) - {wire.OK}:
        raise Failed(f"codes {sorted(set(codes))}")
    remark = sender.send_until(wire.SERVICE_NOT_AVAILABLE, 1)
    same_process(node, pid)
    node.empty()
    since = time.monotonic()
    sender.send_until(wire.OK, RESUMES_WITHIN)
    took = time.monotonic() - since
    same_process(node, pid)
    sender.wait_until_found()
    node.stop()
    return f"{codes.count(wire.OK)} stored, then \"{remark}\", taken again after {took:.1f} s"


CHECKS = [
    Check("disk", "warning level and back (T12)", warning_level),
    Check("disk", "oldest segments make room", oldest_go),
    Check("disk", "no space for a queue's first file", no_space_for_a_queue),
    Check("disk", "killed while segments go", killed_while_forced),
] + [
    Check("disk", f"no space left, {mode} {flush} (T13)", no_space(mode, flush))
    for mode in append_modes() for flush in ("async", "sync")
]
