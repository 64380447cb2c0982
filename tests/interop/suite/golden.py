"""Stores that real Java code wrote (`tests/golden`): the node opens them, serves all they hold, and goes on writing."""

import json
import os
import shutil
import tarfile

from . import wire
from .agent import Failed, Message
from .checks import TESTS, read_store
from .nodes import Kerolox, Sizes
from .scenarios import Scenario, Test

GOLDEN = os.path.join(TESTS, "golden")
TINY = Sizes(commitlog_file=4096, consumequeue_file=200, index_slots=100, index_units=400, message_max=1024)
BROKER = Sizes(commitlog_file=16 << 20, consumequeue_file=60_000, index_slots=5_000, index_units=20_000)


class GoldenStore:
    def __init__(self, name, sizes, topic, queues):
        self.name = name
        self.who = f"golden/{name}"
        self.sizes = sizes
        self.topic = topic  # the one that a client reads and sends to
        self.queues = queues  # of topics that a store without config/ needs; None if it has one

    def lay(self, folder):
        """A copy of the store in `folder`, with a topics.json if it has none."""
        source = os.path.join(GOLDEN, self.name)
        if os.path.isdir(source):
            shutil.copytree(source, folder)
            for path, _, names in os.walk(folder):
                for entry in [path, *(os.path.join(path, name) for name in names)]:
                    os.chmod(entry, 0o755 if os.path.isdir(entry) else 0o644)
        else:
            with tarfile.open(source + ".tar.gz") as archive:
                archive.extractall(os.path.dirname(folder))
        if self.queues is not None:
            os.makedirs(os.path.join(folder, "config"))
            table = {
                topic: {
                    "attributes": {}, "order": False, "perm": 6, "readQueueNums": count, "topicName": topic,
                    "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "writeQueueNums": count,
                } for topic, count in self.queues.items()
            }
            with open(os.path.join(folder, "config", "topics.json"), "w") as file:
                json.dump({"topicConfigTable": table}, file)


STORES = [
    GoldenStore("java-clean", TINY, "A", {"A": 1, "B": 1}),
    GoldenStore("java-crash", TINY, "A", {"A": 1, "B": 1}),
    # Not TopicA: the Java client ends a queue at a message without a body, and its queue 0 holds one.
    GoldenStore("java-broker-4.9.8", BROKER, "broker-a", None),
]


def serve(golden, run_folder, binary, kind):
    """Raises what differs from the store as Java left it; else a summary."""
    folder = os.path.join(run_folder, f"golden-{golden.name}")
    os.makedirs(folder)
    golden.lay(os.path.join(folder, "store"))
    before = read_store(os.path.join(folder, "store"), golden.sizes, ours=False)
    node = Kerolox(folder, "sync", binary, golden.sizes)
    node.start()
    served = queues_are_served(node, before)
    keys = keys_are_found(node, before)
    tables_are_kept(node, before)
    client_reads_and_sends(golden, node, before, folder, kind)
    node.stop()
    after = read_store(node.store, golden.sizes, ours=False)
    for old, new in zip(before.records, after.records):
        if old.fields() != new.fields():
            raise Failed(f"the record at {old.phy} was changed: {old.fields()} to {new.fields()}")
    return f"{served} messages served, {keys} keys found; afterwards {after.summary()}"


def queues_are_served(node, before):
    by_place = {(r.topic, r.queue_id, r.queue_offset): r for r in before.records if r.in_queue()}
    served = 0
    for (topic, queue), (low, top) in sorted(before.queues.items()):
        got = wire.pull_all(node, topic, queue)
        if low != 0 or len(got) < top:
            raise Failed(f"{topic} queue {queue}: {len(got)} messages, the store has {low} to {top}")
        for offset, one in enumerate(got[:top]):
            if one.fields() != by_place[topic, queue, offset].fields():
                raise Failed(f"{topic} queue {queue} offset {offset} is served as {one.fields()}")
        served += top
    return served


def keys_are_found(node, before):
    count = 0
    for record in before.records:
        for key in record.keys() if (record.topic, record.queue_id) in before.queues else ():
            found = wire.query_by_key(node, record.topic, key)
            if record.phy not in {one.own_phy for one in found} and len(found) < 64:
                raise Failed(f"the record at {record.phy} ({record.topic}) is not found by {key!r}")
            count += 1
    return count


def tables_are_kept(node, before):
    topics = before.config.get("topics.json", {}).get("topicConfigTable", {})
    for name, topic in topics.items():
        queue = wire.route(node.name_server, name)["queueDatas"][0]
        for field in ("readQueueNums", "writeQueueNums", "perm"):
            if queue[field] != topic[field]:
                raise Failed(f"the route of {name} has {field} {queue[field]}, topics.json {topic[field]}")
    for place, table in before.config.get("consumerOffset.json", {}).get("offsetTable", {}).items():
        topic, _, group = place.partition("@")
        for queue, offset in table.items() if topic in topics else ():
            got = wire.consumer_offset(node, group, topic, queue)
            if got != offset:
                raise Failed(f"{place} queue {queue} is at {got}, consumerOffset.json says {offset}")


def client_reads_and_sends(golden, node, before, folder, kind):
    """A new group reads the topic from its beginning; a new message gets the next offset and arrives too."""
    test = Test(Scenario(client_reads_and_sends, (), None, 0, False), kind, node, None, folder, [])
    try:
        agent = test.new_agent()
        old = [r for r in before.records if r.topic == golden.topic and r.in_queue()]
        top = before.queues[golden.topic, 0][1]
        new = Message(golden.topic, "written by the node", tag="new", keys="new-key", queue=0)
        (result,) = test.producer(agent).send([new])
        if (result["queue"], result["queue_offset"]) != (0, top):
            raise Failed(f"a new message went to {result}; the queue had ended at {top}")
        consumer = test.consumer(golden.topic, agent=agent)
        got = {(one["queue"], one["offset"]): one for one in consumer.wait_count(len(old) + 1)}
        why = new.differs(got[0, top])
        if why:
            raise Failed(f"the new message: {why}")
        for record in old:
            one = got.get((record.queue_id, record.queue_offset))
            want = Message(record.topic, record.body, record.properties.get("TAGS"), record.properties.get("KEYS"),
                           flag=record.flag)
            why = "missing" if one is None else want.differs(one)
            if why:
                raise Failed(f"{record.topic} queue {record.queue_id} offset {record.queue_offset} for a client: {why}")
    finally:
        test.close()
