"""Kerolox and the real Java broker take turns on one store directory; each reads all that both have written (R14).

What a side must show is what the independent reader finds in the directory before the side opens it: every message of
every queue byte for byte, its unit, its keys, its id, the topics, the groups and the offsets.
"""

import base64
import hashlib
import os
import random
import subprocess
import threading
import time

from . import tools, wire
from .agent import Failed
from .checks import Check, append_modes, expect, read_store
from .nodes import JavaStore, Kerolox, Sizes

LONG_TOPIC = "L" * 127
TOPICS = {"BothA": 3, "BothB": 1, LONG_TOPIC: 1}
GROUP = "both_readers"
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
NEVER = 18  # a delay level that no run outlasts
SOON = 3  # 10 s: longer than a side takes to stop
FLOOD = 300  # messages after which a flood is killed

# Several commit log and consume queue files a turn. The small index files roll as well; that is for stores that are always
# stopped cleanly, since Java's start after a crash deletes those that were not full and does not index all again (J7).
ROLLING = Sizes(commitlog_file=1 << 20, consumequeue_file=1_000, index_slots=500, index_units=800, message_max=512 << 10)
ONE_INDEX = ROLLING._replace(index_slots=5_000, index_units=50_000)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Turn:
    """One side's time with the directory. `end`: "stop", "kill" amid a flood, "look" and stop without adding anything, or
    "halt", which saves the seconds that a stop of Java sleeps through."""

    def __init__(self, side, flush="async", end="stop", host="127.0.0.1"):
        self.side = side
        self.flush = flush
        self.end = end
        self.host = host

    def __str__(self):
        return f"{self.side} {self.flush} {self.end}"


# ---- what the two sides have in common for a turn


class OurSide:
    body_min = 1  # a request without a body has none, says also Java

    def __init__(self, node):
        self.node = node

    def messages(self):
        """(topic, queue, offset) to (physical offset, hash of the record, hash of the body), and (min, max) of each queue."""
        found, bounds = {}, {}
        for topic, queue in self.known_queues:
            top = wire.max_offset(self.node, topic, queue)
            low = int(wire.request(self.node.broker, wire.MIN_OFFSET, {"topic": topic, "queueId": str(queue)})[0]["offset"])
            bounds[topic, queue] = (low, top)
            at = low
            while at < top:
                for record, raw in wire.pull_raw(self.node, topic, queue, at):
                    expect(f"{topic} queue {queue}: the offset after {at - 1}", record.queue_offset, at)
                    found[topic, queue, at] = (record.own_phy, sha256(raw), sha256(record.body))
                    at += 1
        return found, bounds

    def by_keys(self, keys):
        return [[one.own_phy for one in wire.query_by_key(self.node, topic, key)] for topic, key in keys]

    def by_ids(self, phys):
        found = [wire.view(self.node, phy) for phy in phys]
        return [f"{sha256(one.body)} {one.topic} {one.queue_id} {one.queue_offset}" for one in found]

    def make_topic(self, topic, queues):
        wire.create_topic(self.node, topic, queues)

    def make_group(self, group, _retries):
        # Made by its first pull, with the defaults.
        wire.pull_raw(self.node, "BothA", 0, 0, group=group)

    def commit(self, group, topic, queue, offset):
        wire.commit(self.node, group, topic, queue, offset)

    def topic(self, topic):
        queue = wire.route(self.node.name_server, topic)["queueDatas"][0]
        return [queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]]

    def group(self, group):
        config = wire.group_config(self.node, group)
        return [config["retryMaxTimes"], config["retryQueueNums"], config["consumeEnable"]]

    def offset(self, group, topic, queue):
        return wire.consumer_offset(self.node, group, topic, queue)

    def append(self, messages):
        with wire.Connection(self.node.broker) as connection:
            return [_send(connection, message) for message in messages]

    def flood(self, prefix):
        """Kills the node in the middle; what was acknowledged before."""
        acked, lock, enough = [], threading.Lock(), threading.Event()

        def send(topic, queue):
            try:
                with wire.Connection(self.node.broker) as connection:
                    for number in range(1_000_000):
                        body = f"{prefix}-{topic[:9]}-{queue}-{number} ".encode() + b"x" * (number * 37 % 3000)
                        fields = wire.send_fields(topic, queue, {"KEYS": f"flood{number}", "TAGS": f"tag{number % 3}"})
                        code, remark, ext, _ = connection.ask(wire.SEND, fields, body)
                        if code != wire.OK:
                            continue  # busy: nothing is promised
                        with lock:
                            acked.append((topic, queue, int(ext["queueOffset"]), sha256(body)))
                            if len(acked) >= FLOOD:
                                enough.set()
            except OSError:
                pass  # killed

        threads = [threading.Thread(target=send, args=(t, q)) for t, count in TOPICS.items() for q in range(count)]
        for thread in threads:
            thread.start()
        if not enough.wait(60):
            raise Failed(f"{len(acked)} messages of a flood were acknowledged in 60 s")
        self.node.kill()
        for thread in threads:
            thread.join()
        return acked


def _send(connection, message):
    if "batch" in message:
        batch = [(base64.b64decode(one["b64"]), one["properties"]) for one in message["batch"]]
        fields, body = wire.send_fields(message["topic"], message["queue"], batch=True), wire.batch_body(batch)
    else:
        fields = wire.send_fields(message["topic"], message["queue"], message["properties"], message["flag"])
        body = base64.b64decode(message["b64"])
    code, remark, ext, _ = connection.ask(wire.SEND_BATCH if "batch" in message else wire.SEND, fields, body)
    if code != wire.OK:
        raise wire.Refused(code, remark)
    return int(ext["queueOffset"])


class JavaSide:
    body_min = 0

    def __init__(self, node):
        self.node = node

    def messages(self):
        said = self.node.agent.call("read")
        found = {}
        for one in said["messages"]:
            place = one["topic"], one["queue"], one["offset"]
            expect(f"Java's unit of {place}", (one["unit_phy"], one["unit_size"]), (one["phy"], one["size"]))
            want = self.records.get(place)
            if want is not None:
                expect(f"Java's tags code of {place}", one["unit_tags"], want.tags_code())
                expect(f"Java's properties of {place}", one["properties"], want.properties)
            found[place] = (one["phy"], one["raw"], one["body"])
        return found, {(topic, queue): (low, top) for topic, queue, low, top in said["queues"]}

    def by_keys(self, keys):
        return self.node.agent.call("query", keys=keys)["found"]

    def by_ids(self, phys):
        return self.node.agent.call("view", phys=phys)["found"]

    def make_topic(self, topic, queues):
        self.node.agent.call("topic", topic=topic, queues=queues)

    def make_group(self, group, retries):
        self.node.agent.call("group", group=group, retries=retries)

    def commit(self, group, topic, queue, offset):
        self.node.agent.call("commit", group=group, topic=topic, queue=queue, offset=offset)

    def tables(self):
        return self.node.agent.call("tables")

    def topic(self, topic):
        return self.tables()["topics"].get(topic)

    def group(self, group):
        return self.tables()["groups"].get(group)

    def offset(self, group, topic, queue):
        return self.tables()["offsets"].get(f"{topic}@{group}@{queue}")

    def append(self, messages):
        return [result[0] for result in self.node.agent.call("append", messages=messages)["results"]]

    def flood(self, prefix):
        queues = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
        self.node.agent.call("flood", prefix=prefix, queues=queues, halt_after=FLOOD)
        self.node.process_ended(60)
        return [(one["topic"], one["queue"], one["offset"], one["body"])
                for one in self.node.agent.events.get("flood", [])]


# ---- the messages of a turn


def text_of(number, size, rng):
    """Bytes that are no valid record and differ from each other."""
    return (f"{number} " * 8).encode()[:size] if size < 64 else f"{number} ".encode() + rng.randbytes(size - 20)


def messages_of(turn, rng, smallest):
    """Single messages of many kinds, and batches: as JSON, the same for both sides; bodies from `smallest` bytes on."""
    out = []

    def one(number, size):
        properties = {"UNIQ_KEY": f"{turn:02}U{number:06}"}
        if number % 3 != 0:
            properties["KEYS"] = f"key{turn}x{number} of{number % 5}"
        if number % 4 != 0:
            properties["TAGS"] = ["Aa", "BB", "中文", "polygenelubricants"][number % 4]
        if number % 7 == 0:
            properties["colour"] = "ümlaut, 中, and = ; signs"
        return {"b64": base64.b64encode(text_of(number, size, rng)).decode(), "properties": properties}

    places = [(topic, queue) for topic, count in TOPICS.items() for queue in range(count)]
    for number in range(160):
        topic, queue = places[number % len(places)]
        size = [smallest, 1, 50, 700, 4_000, 20_000][number % 6] if number % 40 else 400_000
        message = {"topic": topic, "queue": queue, "flag": number % 3, **one(number, size)}
        if number % 10 == 3:
            message["host"] = "2001:db8::7"
        if number % 50 == 5:
            message["properties"]["DELAY"] = str(NEVER)
        out.append(message)
    for number in range(6):
        topic, queue = places[number % len(places)]
        batch = [one(1000 + 20 * number + i, 100 + 50 * i) for i in range(12)]
        out.append({"topic": topic, "queue": queue, "flag": 0, "batch": batch})
    return out


def places_of(messages, offsets):
    """(topic, queue, offset, hash of the body) of what was appended, from what its appends were answered."""
    for message, offset in zip(messages, offsets):
        for step, one in enumerate(message.get("batch", [message])):
            delayed = "DELAY" in one["properties"]
            topic, queue = (SCHEDULE_TOPIC, NEVER - 1) if delayed else (message["topic"], message["queue"])
            yield topic, queue, offset + step, sha256(base64.b64decode(one["b64"]))


# ---- taking turns


class Directory:
    """A store directory that two sides use in turn."""

    def __init__(self, folder, binary, sizes, append):
        self.folder = folder
        self.root = os.path.join(folder, "store")
        self.binary = binary
        self.sizes = sizes
        self.append = append
        self.rng = random.Random(folder)
        self.turns = 0
        self.before = None  # the store as the last turn left it
        self.ledger = []  # all that was ever acknowledged
        self.topics, self.groups = {}, {}
        self.offsets, self.offsets_saved = {}, {}

    def open(self, turn):
        self.turns += 1
        folder = os.path.join(self.folder, f"turn-{self.turns}-{turn.side}")
        os.makedirs(folder)
        if turn.side == "java":
            node = JavaStore(folder, turn.flush, tools.java_store_agent(), self.sizes, self.root)
            side = JavaSide(node)
            _, crashed = node.start()
            if self.before is not None:
                expect("whether Java sees the mark of a crash", crashed, self.before.crashed)
        else:
            node = Kerolox(folder, turn.flush, self.binary, self.sizes, self.root, self.append, turn.host)
            side = OurSide(node)
            node.start()
        records = self.before.records if self.before else []
        side.records = {(r.topic, r.queue_id, r.queue_offset): r for r in records if r.in_queue()}
        side.known_queues = sorted({(topic, queue) for topic, queue, _ in side.records})
        return node, side

    def take(self, turn):
        """Opens, compares, appends, ends, reads. Raises what is not as it must be."""
        name = f"turn {self.turns + 1} ({turn})"
        try:
            node, side = self.open(turn)
            keys = self.compare(side)
            self.compare_tables(side)
            if turn.end not in ("look", "halt"):
                self.add(side)
            if turn.end == "kill":
                self.ledger += side.flood(f"flood{self.turns}")
            elif turn.end == "halt":
                node.kill()
            else:
                node.stop()
            self.read_again(turn, keys)
        except Exception as why:
            raise Failed(f"{name}: {why}") from why

    def compare(self, side):
        """Does the side show what the directory holds? The physical offsets that it finds by each key."""
        want = {place: (r.phy, sha256(self.before.bytes_of(r)), sha256(r.body)) for place, r in side.records.items()}
        found, bounds = side.messages()
        if found != want:
            differ = sorted(place for place in found.keys() | want.keys() if found.get(place) != want.get(place))
            place = differ[0]
            raise Failed(f"{len(differ)} of {len(want)} messages differ; at {place}: {found.get(place)}, "
                         f"expected {want.get(place)}")
        for topic, queue in side.known_queues:
            count = sum(place[:2] == (topic, queue) for place in want)
            expect(f"bounds of {topic} queue {queue}", bounds[topic, queue], (0, count))
        ids = self.rng.sample(sorted(want), min(len(want), 60))
        expect("messages by id", side.by_ids([want[place][0] for place in ids]), [
            " ".join([want[place][2], *map(str, place)]) for place in ids])
        asked = sorted({(r.topic, key) for r in side.records.values() for key in r.keys()})
        asked = self.rng.sample(asked, min(len(asked), 400))
        return dict(zip(asked, map(set, side.by_keys(asked))))

    def compare_tables(self, side):
        for topic, queues in self.topics.items():
            expect(f"topic {topic}", side.topic(topic), [queues, queues, 6])
        for group, retries in self.groups.items():
            expect(f"group {group}", side.group(group), [retries, 1, True])
        for place, offset in self.offsets.items():
            got = side.offset(*place)
            # A crash may cost what was committed in the seconds before it.
            oldest = self.offsets_saved.get(place)
            if got is None and oldest is not None or got is not None and not (oldest or 0) <= got <= offset:
                raise Failed(f"consumer offset of {place} is {got}, expected {oldest} to {offset}")

    def add(self, side):
        self.topics[f"Turn{self.turns}"] = 1 + self.turns % 4
        self.groups[f"turn{self.turns}"] = 16 if isinstance(side, OurSide) else 2 + self.turns
        if self.before is None:
            for topic, queues in TOPICS.items():
                side.make_topic(topic, queues)
        side.make_topic(f"Turn{self.turns}", self.topics[f"Turn{self.turns}"])
        messages = messages_of(self.turns, self.rng, side.body_min)
        self.ledger += places_of(messages, side.append(messages))
        side.make_group(f"turn{self.turns}", self.groups[f"turn{self.turns}"])
        side.make_group(GROUP, 16)
        self.groups[GROUP] = 16
        for queue in range(TOPICS["BothA"]):
            place = GROUP, "BothA", queue
            self.offsets[place] = self.offsets.get(place, 0) + 5 + queue
            side.commit(*place, self.offsets[place])

    def read_again(self, turn, keys):
        """What the turn left: consistent, nothing of before changed, all that was acknowledged there, each key found."""
        after = read_store(self.root, self.sizes, ours=turn.side == "kerolox")
        expect("whether the turn left the mark of a crash", after.crashed, turn.end in ("kill", "halt"))
        for old, new in zip(self.before.records if self.before else [], after.records, strict=False):
            if (old.phy, old.fields()) != (new.phy, new.fields()):
                raise Failed(f"the record at {old.phy} was changed: {old.fields()} to {new.phy} {new.fields()}")
        there = {(r.topic, r.queue_id, r.queue_offset): sha256(r.body) for r in after.records if r.in_queue()}
        for topic, queue, offset, body in self.ledger:
            expect(f"what was acknowledged at {topic} queue {queue} offset {offset}", there.get((topic, queue, offset)), body)
        want = {key: set() for key in keys}
        for record in self.before.records if self.before else []:
            # What a start of Java after a crash does not index again (J7), nobody finds.
            if after.index_begin is not None and record.phy >= after.index_begin:
                for key in record.keys():
                    if (record.topic, key) in want:
                        want[record.topic, key].add(record.phy)
        for key, phys in want.items():
            if not phys <= keys[key] and len(keys[key]) < 64:
                raise Failed(f"{key} finds {sorted(keys[key])}, expected {sorted(phys)} as well")
        if turn.end != "kill":
            self.offsets_saved = dict(self.offsets)
        self.before = after

    def verify(self):
        """`kerolox verify` of what we left."""
        done = subprocess.run(
            [self.binary, "verify", self.root, "--index-slots", str(self.sizes.index_slots), "--index-entries",
             str(self.sizes.index_units)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        if done.returncode != 0:
            raise Failed(f"kerolox verify ended with {done.returncode}: {done.stdout[-1500:]}")


def turns(folder, binary, sizes, append, plan):
    directory = Directory(folder, binary, sizes, append)
    for turn in plan:
        directory.take(turn)
        if turn.side == "kerolox" and turn.end != "kill":
            directory.verify()
    return f"{len(plan)} turns; {directory.before.summary()}"


CLEAN = [
    Turn("kerolox", "async"), Turn("java", "async"), Turn("kerolox", "sync", host="[::1]"), Turn("java", "sync"),
    Turn("kerolox", "async"), Turn("java", "async"), Turn("kerolox", end="look"), Turn("java", end="halt"),
]
OURS_FIRST = [
    Turn("kerolox", "sync", "kill"), Turn("java", "async"), Turn("kerolox", "async", "kill"),
    Turn("java", "sync", "kill"), Turn("kerolox", "sync"), Turn("java", "async", "kill"),
    Turn("kerolox", "async"), Turn("java", end="halt"),
]
JAVA_FIRST = [Turn("java", "async", "kill"), Turn("kerolox", "sync"), *OURS_FIRST[1:]]


# ---- delayed messages


def delayed(folder, binary):
    """A delayed message that one side took is delivered by the other, once; and back."""
    directory = Directory(folder, binary, ONE_INDEX, "buffered")
    for turn, (taker, deliverer) in enumerate([("java", "kerolox"), ("kerolox", "java")]):
        node, side = directory.open(Turn(taker))
        if turn == 0:
            side.make_topic("BothA", 1)
        body = f"taken by {taker}".encode()
        side.append([{"topic": "BothA", "queue": 0, "flag": 0, "b64": base64.b64encode(body).decode(),
                      "properties": {"DELAY": str(SOON), "TAGS": "late", "KEYS": f"late{turn}"}}])
        node.stop()
        directory.before = read_store(directory.root, directory.sizes)
        count = sum(r.topic == "BothA" for r in directory.before.records)
        expect("messages that were delivered before the stop", count, turn)
        node, side = directory.open(Turn(deliverer))
        side.known_queues = [("BothA", 0)]
        deadline = time.monotonic() + 40
        while len(found := {place: one for place, one in side.messages()[0].items() if place[0] == "BothA"}) == count:
            if time.monotonic() > deadline:
                raise Failed(f"what {taker} took is not delivered by {deliverer} after 40 s")
            time.sleep(0.2)
        expect("the delivered message", found["BothA", 0, turn][2], sha256(body))
        expect("found by its key", len(side.by_keys([("BothA", f"late{turn}")])[0]), 1)
        if deliverer == "java":
            # It moves once Java has seen the delivery answered, some time after the message is there.
            while side.tables()["delays"][str(SOON)] != 2:
                if time.monotonic() > deadline:
                    raise Failed(f"Java's progress of the delays stays at {side.tables()['delays'][str(SOON)]}, expected 2")
                time.sleep(0.2)
        node.stop()
        directory.before = read_store(directory.root, directory.sizes)
        expect("the progress of the delays", directory.before.config["delayOffset.json"]["offsetTable"][str(SOON)], turn + 1)
    expect("messages in the end", sum(r.topic == "BothA" for r in directory.before.records), 2)
    return f"levels kept both ways; {directory.before.summary()}"


def deleted(folder, binary):
    """A topic that we deleted and made again has its new messages alone for Java, too, which goes on with their numbers."""
    directory = Directory(folder, binary, ONE_INDEX, "buffered")

    def message(topic, text):
        return {"topic": topic, "queue": 0, "flag": 0, "b64": base64.b64encode(text.encode()).decode(),
                "properties": {"KEYS": text}}

    node, side = directory.open(Turn("kerolox"))
    for topic in ("BothA", "BothB"):
        side.make_topic(topic, 1)
    side.append([message(topic, f"old{number}") for number in range(20) for topic in ("BothA", "BothB")])
    wire.pull_raw(node, "BothA", 0, 0, group=GROUP)
    side.commit(GROUP, "BothA", 0, 20)
    wire.request(node.broker, wire.DELETE_TOPIC, {"topic": "BothA"})
    side.make_topic("BothA", 1)
    texts = [f"new{number}" for number in range(3)]
    side.append([message("BothA", text) for text in texts])
    node.stop()
    for taker in ("java", "kerolox", "java", "kerolox"):
        node, side = directory.open(Turn(taker))
        side.known_queues = [("BothA", 0), ("BothB", 0)]
        found, bounds = side.messages()
        want = {("BothA", 0, at): sha256(text.encode()) for at, text in enumerate(texts)}
        got = {place: one[2] for place, one in found.items() if place[0] == "BothA"}
        expect(f"{taker}: messages of the topic", got, want)
        expect(f"{taker}: the queue's bounds", bounds["BothA", 0], (0, len(texts)))
        expect(f"{taker}: messages of another topic", sum(place[0] == "BothB" for place in found), 20)
        expect(f"{taker}: found by the newest key", len(side.by_keys([("BothA", texts[-1])])[0]), 1)
        expect(f"{taker}: the deleted topic's offset", side.offset(GROUP, "BothA", 0) in (None, -1), True)
        texts.append(f"by {taker} {len(texts)}".replace(" ", "-"))
        side.append([message("BothA", texts[-1])])
        if taker == "kerolox":
            wire.pull_all(node, "BothA", 0)
        node.stop()
    directory.verify()
    return f"{len(texts)} messages, none of the deleted topic's"


def checks():
    yield Check("both-ways/clean", "take turns", lambda f, b: turns(f, b, ROLLING, append_modes()[0], CLEAN), 240)
    for number, mode in enumerate(append_modes()):
        plan = JAVA_FIRST if number % 2 else OURS_FIRST
        yield Check(f"both-ways/{mode}", "take turns and are killed",
                    lambda f, b, mode=mode, plan=plan: turns(f, b, ONE_INDEX, mode, plan), 300)
    yield Check("both-ways/delayed", "deliver what the other took", delayed)
    yield Check("both-ways/deleted", "know what was deleted", deleted)


CHECKS = list(checks())
