"""The scenarios: each is one promise to a client, checked on the content of what arrives.

A scenario is a function of a `Test`, which gives it a client process of the kind under test, the node, and names of
its own for topics and groups, so that many run beside each other.
"""

import hashlib
import itertools
import random
import time

from . import wire
from .agent import Agent, Consumer, Failed, Message, Producer, Skipped

SCENARIOS = []
LANGUAGES = ("java", "go", "cpp")


class Scenario:
    def __init__(self, function, languages, node, timeout, slow):
        self.name = function.__name__
        self.function = function
        self.languages = languages
        self.node = node  # "main": the shared node; "sync": the one that is killed
        self.timeout = timeout
        self.slow = slow  # starts early, because it mostly waits


def scenario(languages=LANGUAGES, node="main", timeout=120, slow=False):
    def add(function):
        SCENARIOS.append(Scenario(function, languages, node, timeout, slow))
        return function
    return add


class Test:
    """One run of a scenario against one kind of client."""

    _numbers = itertools.count(1)

    def __init__(self, scenario, kind, node, agents, folder, ledger, storm=None):
        self.scenario = scenario
        self.kind = kind
        self.node = node
        self.ledger = ledger
        self.storm = storm
        self._agents = agents
        self._folder = folder
        self._own_agents = []
        self._open = []
        self.id = f"{scenario.name}_{kind.label}"

    def topic(self, suffix="", queues=None):
        """A topic name of this test's own; created on the node if `queues` is given."""
        name = f"T_{self.id}{suffix}"
        if queues is not None:
            wire.create_topic(self.node, name, queues)
        return name

    def group(self, suffix=""):
        return f"G_{self.id}{suffix}"

    def agent(self):
        """The client process; Java's is shared by all tests of its kind, since a JVM is slow to start."""
        if self.kind.language == "java":
            return self._agents.shared(self.kind)
        if not self._own_agents:
            self.new_agent()
        return self._own_agents[0]

    def new_agent(self):
        """A client process of this test alone, which it may kill."""
        number = next(self._numbers)
        agent = Agent(self.kind, self.node.name_server, f"{self._folder}/{self.id}-{number}")
        self._own_agents.append(agent)
        return agent

    def producer(self, agent=None, **options):
        producer = Producer(self, agent or self.agent(), f"{self.id}_{next(self._numbers)}", **options)
        self._open.append(producer)
        return producer

    def consumer(self, topics, group=None, agent=None, **options):
        consumer = Consumer(self, agent or self.agent(), f"{self.id}_{next(self._numbers)}", group or self.group(),
                            topics, **options)
        self._open.append(consumer)
        return consumer

    def stop(self, client):
        self._open.remove(client)
        client.stop()

    def close(self):
        """Ends what the scenario left open: polite in the shared process, by the process otherwise."""
        for client in self._open:
            if client.agent not in self._own_agents:
                try:
                    client.stop()
                except Failed:
                    pass
        for agent in self._own_agents:
            agent.kill()


def sample(topic, count, prefix="m", **options):
    """Messages that differ in everything, with text beyond ASCII in body, key and property."""
    out = []
    for i in range(count):
        out.append(Message(
            topic, f"{prefix} {i} – grüße 消息", tag=f"Tag{i % 3}", keys=f"{prefix}-key-{i} 共-{i}",
            props={"color": f"blau-{i}", "note": "a=b; c:d {\"e\":[1]} ü"}, **options))
    return out


def check_places(results, got):
    """Queue offsets of the send results are where the messages were found."""
    for result, one in zip(results, got):
        if result["queue_offset"] != one["offset"] or result.get("queue", one["queue"]) != one["queue"]:
            raise Failed(f"sent to {result}, found in queue {one['queue']} at {one['offset']}")
        if result["msg_id"] and one["msg_id"] != result["msg_id"]:
            raise Failed(f"sent as {result['msg_id']}, found as {one['msg_id']}")


def check_committed(t, topic, group, queues):
    """A consumer that took everything and stopped has left its offsets at the queues' ends."""
    deadline = time.monotonic() + 5
    for queue in range(queues):
        want = wire.max_offset(t.node, topic, queue)
        while (committed := wire.consumer_offset(t.node, group, topic, queue)) != want:
            if time.monotonic() > deadline:
                raise Failed(f"queue {queue}: committed {committed} at the consumer's end, the queue ends at {want}")
            time.sleep(0.1)


# ---- sending


@scenario(languages=("java", "go"))
def create_topic(t):
    """A topic made with the client's own call is routable at once, with that many queues."""
    topic = t.topic()
    if t.kind.language == "java":
        producer = t.producer()
        t.agent().call("create_topic", producer=producer.name, topic=topic, queues=3)
    else:
        t.agent().call("create_topic", topic=topic, queues=3, broker=t.node.broker)
        producer = t.producer()
    queue = wire.route(t.node.name_server, topic)["queueDatas"][0]
    if (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) != (3, 3, 6):
        raise Failed(f"the route says {queue}")
    messages = [Message(topic, f"to queue {q}", queue=q) for q in range(3)]
    results = producer.send(messages)
    check_places(results, t.consumer(topic).expect(messages))


@scenario()
def send_sync(t):
    """Synchronous sends to a topic that the first one creates."""
    messages = sample(t.topic(), 20)
    if t.kind.language != "cpp":
        messages[0].flag = 7
    results = t.producer().send(messages)
    queue = wire.route(t.node.name_server, t.topic())["queueDatas"][0]
    if queue["readQueueNums"] != 4 or queue["perm"] != 6:
        raise Failed(f"the topic was created as {queue}, expected 4 queues and permission 6")
    check_places(results, t.consumer(t.topic()).expect(messages))


@scenario()
def send_async(t):
    messages = sample(t.topic(queues=4), 100)
    results = t.producer().send(messages, "async")
    check_places(results, t.consumer(t.topic()).expect(messages))


@scenario()
def send_oneway(t):
    messages = sample(t.topic(queues=4), 50)
    t.producer().send(messages, "oneway")
    t.consumer(t.topic()).expect(messages)


@scenario()
def send_batch(t):
    """A batch becomes single messages, side by side in one queue, each with its own tag, keys and properties."""
    if t.kind.language == "cpp" and t.node.is_java:
        raise Skipped("a Java broker takes this library's batch for one message")
    messages = sample(t.topic(queues=4), 10)
    (result,) = t.producer().send(messages, "batch")
    got = t.consumer(t.topic()).expect(messages)
    places = [(one["queue"], one["offset"]) for one in got]
    first_queue, first_offset = places[0]
    if places != [(first_queue, first_offset + i) for i in range(len(messages))]:
        raise Failed(f"the batch lies at {places}")
    if result["queue_offset"] != first_offset:
        raise Failed(f"the send says offset {result['queue_offset']}, the batch begins at {first_offset}")
    # A Java broker 5.3.3 puts the id of the 5.x batch itself over those of its messages.
    if t.kind.language == "java" and not t.node.is_java and result["msg_id"] != ",".join(one["msg_id"] for one in got):
        raise Failed(f"the send says ids {result['msg_id']}, found {[one['msg_id'] for one in got]}")


@scenario()
def big_bodies(t):
    """1 MiB compressed by the client, and the largest body there is, 4 MiB, not compressed."""
    topic = t.topic(queues=2)
    words = random.Random(5)
    # No zero bytes: the C++ library hands bodies out as C strings.
    compressible = bytes(words.choices(b"abcdefgh", k=4096)) * 256
    incompressible = bytes(b or 1 for b in words.randbytes(4 << 20))
    small = Message(topic, compressible, tag="small", queue=0)
    large = Message(topic, incompressible, tag="large", queue=1)
    t.producer().send([small])
    t.producer(compress_over=8 << 20).send([large])
    got_small, got_large = t.consumer(topic).expect([small, large], timeout=60)
    if got_small["store_size"] > 700_000:
        raise Failed(f"the compressible MiB takes {got_small['store_size']} bytes in the store: not compressed")
    if got_large["store_size"] <= 4 << 20:
        raise Failed(f"the 4 MiB body takes {got_large['store_size']} bytes in the store: compressed")
    (stored,) = wire.pull(t.node, topic, 0, 0)
    if not stored.sys_flag & 1 or stored.body != compressible:
        raise Failed("the stored record is not the compressed body")
    (stored,) = wire.pull(t.node, topic, 1, 0)
    if stored.sys_flag & 1 or stored.raw_body != incompressible:
        raise Failed("the stored record is not the body as it was sent")


# ---- receiving


@scenario()
def push_concurrent(t):
    """A consumer that waits (long poll) gets messages as they are sent, each once, and its offsets are committed."""
    topic = t.topic(queues=4)
    consumer = t.consumer(topic)
    producer = t.producer()
    messages = sample(topic, 100, "first") + sample(topic, 100, "second")
    producer.send(messages[:100])
    consumer.wait_count(100)
    producer.send(messages[100:])
    got = consumer.expect(messages)
    late = [one for one in got[-50:] if one["at"] - one["stored"] > 5_000]
    if late:
        took = late[0]["at"] - late[0]["stored"]
        raise Failed(f"a waiting consumer got {text_of_place(late[0])} only {took} ms after its storing")
    t.stop(consumer)
    check_committed(t, topic, consumer.group, 4)


def text_of_place(one):
    return f"{one['topic']} queue {one['queue']} offset {one['offset']}"


@scenario(timeout=150, slow=True)
def push_orderly(t):
    """One message of a queue at a time, in order; one that fails is tried again before the next."""
    topic = t.topic(queues=4)
    messages = [Message(topic, f"{q}/{i}", tag="o", queue=q) for i in range(25) for q in range(4)]
    t.producer().send(messages)
    consumer = t.consumer(topic, mode="orderly", fail={"1/5": 2})
    consumer.wait(lambda got: sum(one["good"] for one in got) >= 100,
                  lambda: f"{sum(one['good'] for one in consumer.got())} of 100 were consumed", 90)
    got = consumer.got()
    if any(one["together"] != 1 for one in got):
        raise Failed("two messages of one queue were consumed at the same time")
    for queue in range(4):
        offsets = [one["offset"] for one in got if one["queue"] == queue]
        want = sorted(list(range(25)) + ([5, 5] if queue == 1 else []))
        if offsets != want:
            raise Failed(f"queue {queue} was consumed in the order {offsets}")
    for one in got:
        why = messages[one["offset"] * 4 + one["queue"]].differs(one)
        if why:
            raise Failed(f"{text_of_place(one)}: {why}")


@scenario()
def broadcast(t):
    """Each member of a broadcasting group gets every message; the node keeps no offsets for it."""
    topic = t.topic(queues=4)
    first = t.consumer(topic, model="broadcast")
    second = t.consumer(topic, model="broadcast")
    messages = sample(topic, 30)
    t.producer().send(messages)
    first.expect(messages)
    second.expect(messages)
    for queue in range(4):
        offset = wire.consumer_offset(t.node, t.group(), topic, queue)
        if offset is not None:
            raise Failed(f"the node has offset {offset} of a broadcasting group in queue {queue}")


@scenario(languages=("java",))
def lite_pull(t):
    """Pull consumer with a subscription: commits, and a second one goes on where the first stopped."""
    topic = t.topic(queues=4)
    producer = t.producer()
    messages = sample(topic, 40, "first") + sample(topic, 40, "second")
    producer.send(messages[:40])
    first = t.consumer(topic, mode="lite")
    first.expect(messages[:40])
    t.stop(first)
    check_committed(t, topic, first.group, 4)
    producer.send(messages[40:])
    t.consumer(topic, mode="lite").expect(messages[40:])


@scenario(languages=("java",))
def lite_pull_assign(t):
    """Pull consumer with assigned queues that it seeks in."""
    topic = t.topic(queues=2)
    messages = [Message(topic, f"{q}/{i}", queue=q) for i in range(10) for q in range(2)]
    t.producer().send(messages)
    consumer = t.consumer(topic, mode="lite", assign=True)
    # The client hands out what a pull from before the seek brings, if it comes after the next pull has begun: let
    # the pulls wait at the end first, with nothing under way.
    consumer.expect(messages)
    consumer.seek(6)
    consumer.expect(messages[12:], after=len(messages))


@scenario()
def tags(t):
    """The node filters by tag hash, the client by text: Aa and BB have one hash."""
    topic = t.topic(queues=4)
    messages = []
    for i in range(8):
        messages += [Message(topic, f"{tag} {i}", tag=tag) for tag in ("TagA", "TagB", "TagC", "Aa", "BB")]
        messages.append(Message(topic, f"none {i}"))
    some = t.consumer({topic: "TagA || TagC"}, group=t.group("some"))
    one = t.consumer({topic: "Aa"}, group=t.group("one"))
    everything = t.consumer(topic, group=t.group("all"))
    t.producer().send(messages)
    some.expect([m for m in messages if m.tag in ("TagA", "TagC")])
    one.expect([m for m in messages if m.tag == "Aa"])
    everything.expect(messages)


@scenario()
def query_by_key(t):
    """Messages are found by each word of KEYS, by message id, and by place."""
    topic = t.topic(queues=4)
    messages = [Message(topic, f"keyed {i}", tag="k", keys=f"order-{i} shared-{t.kind.label}") for i in range(5)]
    other = t.topic("_other", queues=1)
    producer = t.producer()
    results = producer.send(messages)
    producer.send([Message(other, "other topic", keys=f"shared-{t.kind.label}")])

    def bodies(key):
        if t.kind.language == "java":
            try:
                found = t.agent().call("query", producer=producer.name, by="key", topic=topic, key=key)["found"]
            except Failed as why:
                if "no message" in str(why).lower():
                    return []
                raise
            return sorted((one["sha256"], one["keys"]) for one in found)
        return sorted((hashlib.sha256(one.body).hexdigest(), one.properties["KEYS"])
                      for one in wire.query_by_key(t.node, topic, key))

    for key, want in ((f"shared-{t.kind.label}", messages), ("order-3", messages[3:4]), ("order-9", [])):
        expected = sorted((m.sha256, m.keys) for m in want)
        deadline = time.monotonic() + 10
        while (found := bodies(key)) != expected and time.monotonic() < deadline:
            time.sleep(0.2)
        if found != expected:
            raise Failed(f"key {key!r} finds {len(found)} messages, expected {len(expected)}, or their content differs")
    if t.kind.language != "java":
        return
    for message, result in zip(messages, results):
        for name in ("msg_id", "offset_msg_id"):
            found = t.agent().call("query", producer=producer.name, by="id", topic=topic, id=result[name])["found"]
            why = message.differs(found)
            if why:
                raise Failed(f"by {name}: {why}")
            if (found["queue"], found["offset"]) != (result["queue"], result["queue_offset"]):
                raise Failed(f"by {name}: found in queue {found['queue']} at {found['offset']}, sent to {result}")


@scenario(languages=("java",))
def offsets_by_time(t):
    """Smallest and largest offset of a queue, and the offset at a time."""
    topic = t.topic(queues=2)
    producer = t.producer()
    producer.send([Message(topic, f"before {i}", queue=0) for i in range(3)])
    time.sleep(0.3)
    middle = int(time.time() * 1000)
    time.sleep(0.3)
    producer.send([Message(topic, f"after {i}", queue=0) for i in range(4)])
    time.sleep(0.5)
    offsets = t.agent().call("query", producer=producer.name, by="offsets", topic=topic, time=middle)["offsets"]
    if offsets != {"0": {"min": 0, "max": 7, "at": 3}, "1": {"min": 0, "max": 0, "at": 0}}:
        raise Failed(f"offsets are {offsets}")


# ---- delay, retry, dead letter


@scenario()
def delay_level(t):
    """Delayed messages come when their level says, as they were sent."""
    topic = t.topic(queues=4)
    consumer = t.consumer(topic)
    messages = [Message(topic, f"level {level}", tag="d", keys=f"d{level}", props={"color": "c"}, delay=level)
                for level in (1, 2)] + [Message(topic, "at once", tag="d", keys="d0", props={"color": "c"})]
    t.producer().send(messages)
    got = consumer.expect(messages)
    for one, least in zip(got, (1000, 5000, 0)):
        took = one["at"] - one["born"]
        if not least - 100 <= took <= least + 6000:
            raise Failed(f"{least} ms asked for, {took} ms taken")


@scenario(languages=("java", "go"), timeout=180, slow=True)
def retry_then_dead_letter(t):
    """A message that always fails is tried as often as the group says, then lies in the dead-letter topic."""
    topic = t.topic(queues=2)
    group = t.group()
    good, once, never = (Message(topic, name, tag=name, keys=f"k-{name}", props={"color": name})
                         for name in ("good", "once", "never"))
    consumer = t.consumer(topic, group=group, max_reconsume=2, retry_level=1, fail={"once": 1, "never": 99})
    results = t.producer().send([good, once, never])
    consumer.wait(lambda got: len(got) >= 6, lambda: f"{len(consumer.got())} of 6 deliveries", 120)
    dead_topic = f"%DLQ%{group}"
    deadline = time.monotonic() + 20
    while True:
        try:
            wire.route(t.node.name_server, dead_topic)
            break
        except wire.Refused:
            if time.monotonic() > deadline:
                raise Failed(f"no route of {dead_topic} 20 s after the last attempt") from None
            time.sleep(0.2)
    (dead,) = t.consumer(dead_topic, group=t.group("_dead")).expect([never], timeout=60, topic=dead_topic)
    attempts = {}
    for one in consumer.got():
        attempts.setdefault(one["sha256"], []).append(one)
    for message, count in ((good, 1), (once, 2), (never, 3)):
        tries = attempts[message.sha256]
        if [one["reconsume"] for one in tries] != list(range(count)):
            raise Failed(f"{message.tag} was delivered with attempt numbers {[one['reconsume'] for one in tries]}")
        for one in tries:
            # Clients show a retried message under its first topic.
            why = message.differs(one)
            if why:
                raise Failed(f"{message.tag}, attempt {one['reconsume']}: {why}")
        for earlier, later in zip(tries, tries[1:]):
            if later["at"] - earlier["at"] < 900:
                raise Failed(f"{message.tag} came again after {later['at'] - earlier['at']} ms, asked for 1 s")
    if t.kind.language == "java":
        origin = (dead["props"].get("RETRY_TOPIC"), dead["props"].get("ORIGIN_MESSAGE_ID"))
        if origin != (topic, results[2]["offset_msg_id"]):
            raise Failed(f"the dead letter says it is from {origin}; sent to {topic} as {results[2]}")


@scenario(languages=("cpp",), timeout=150, slow=True)
def retry(t):
    """A failed message comes again after 10 s, the level of a first failure. (No call sets the limit of tries.)"""
    topic = t.topic(queues=2)
    message = Message(topic, "once", tag="once", keys="k-once", props={"color": "red"})
    consumer = t.consumer(topic, fail={"once": 1})
    t.producer().send([message])
    consumer.wait_count(2, 90)
    time.sleep(0.5)
    tries = consumer.got()
    if [one["reconsume"] for one in tries] != [0, 1]:
        raise Failed(f"delivered with attempt numbers {[one['reconsume'] for one in tries]}")
    for one in tries:
        why = message.differs(one)
        if why:
            raise Failed(f"attempt {one['reconsume']}: {why}")
    if tries[1]["at"] - tries[0]["at"] < 9_900:
        raise Failed(f"it came again after {tries[1]['at'] - tries[0]['at']} ms, the level says 10 s")


# ---- groups


@scenario()
def resume(t):
    """A consumer that starts again in the same group goes on at its offset: nothing missing, nothing twice."""
    topic = t.topic(queues=4)
    producer = t.producer()
    messages = sample(topic, 40, "first") + sample(topic, 40, "second")
    first = t.consumer(topic)
    producer.send(messages[:40])
    first.expect(messages[:40])
    t.stop(first)
    check_committed(t, topic, first.group, 4)
    producer.send(messages[40:])
    t.consumer(topic).expect(messages[40:], quiet=1.5)


@scenario(timeout=200, slow=True)
def rebalance_and_takeover(t):
    """Two members share 8 queues; when one is killed with SIGKILL, the other gets its queues and loses nothing."""
    topic = t.topic(queues=8)
    producer = t.producer()
    agents = [t.new_agent(), t.new_agent()]
    members = [t.consumer(topic, agent=agent) for agent in agents]
    sent = []

    def send_round(name):
        messages = [Message(topic, f"{name}/{q}/{i}", tag=name, queue=q) for i in range(4) for q in range(8)]
        producer.send(messages)
        sent.extend(messages)
        return messages

    def owners(messages):
        """queue -> set of members that got the messages; None while one is missing."""
        wanted = {m.sha256 for m in messages}
        out = {}
        found = set()
        for number, member in enumerate(members):
            for one in member.got():
                if one["sha256"] in wanted:
                    found.add(one["sha256"])
                    out.setdefault(one["queue"], set()).add(number)
        return out if found == wanted else None

    deadline = time.monotonic() + 60
    for number in itertools.count():
        messages = send_round(f"shared{number}")
        until = time.monotonic() + 20
        while (now := owners(messages)) is None and time.monotonic() < until:
            time.sleep(0.1)
        shares = [sum(1 for who in (now or {}).values() if who == {number}) for number in (0, 1)]
        if shares == [4, 4]:
            break
        if time.monotonic() > deadline:
            raise Failed(f"the members never had 4 queues each; the last round went {now}")
        time.sleep(1)
    agents[1].kill()
    killed = time.monotonic()
    messages = send_round("after")
    members[0].wait_all(messages, 60)
    took = time.monotonic() - killed
    if took > 15:
        raise Failed(f"the survivor had everything only {took:.1f} s after the kill: nobody told it")
    time.sleep(1)
    by_hash = {m.sha256: m for m in sent}
    seen = {}
    for member in members:
        for one in member.got():
            why = by_hash[one["sha256"]].differs(one)
            if why:
                raise Failed(f"{text_of_place(one)}: {why}")
            seen[one["sha256"]] = seen.get(one["sha256"], 0) + 1
    missing = [m.body for m in sent if m.sha256 not in seen]
    if missing:
        raise Failed(f"{len(missing)} messages reached no member: {missing[:3]}")
    # What the dead member had consumed but not committed comes again; what was sent after it must not.
    twice = [m.body for m in messages if seen[m.sha256] != 1]
    if twice:
        raise Failed(f"{len(twice)} messages sent after the kill came more than once: {twice[:3]}")


# ---- many


COUNT = 10_000
COUNT_QUEUES = 8


def check_flood(got, topic, prefix, repeated, hidden_repeats=0):
    """Every numbered message is there once, in order in its queue; those whose send was repeated at least once.

    `hidden_repeats`: how many may be there twice, side by side, although the client reported no failure.
    """
    at = {}  # (queue, offset) -> body
    order = {queue: [] for queue in range(COUNT_QUEUES)}
    for one in got:
        body = one["sha256"]
        place = (one["queue"], one["offset"])
        if place in at and at[place] != body:
            raise Failed(f"{topic} queue {place[0]} offset {place[1]} held two different messages")
        if place not in at:
            order[one["queue"]].append(one["offset"])
        at[place] = body
    expected = {}
    for queue in range(COUNT_QUEUES):
        for number in range(COUNT // COUNT_QUEUES):
            message = Message(topic, f"{prefix}-{queue}-{number}")
            expected[message.sha256] = (queue, number, message.body.decode())
    last = dict.fromkeys(range(COUNT_QUEUES), -1)
    count = dict.fromkeys(expected, 0)
    may_repeat = set(repeated)
    for place in sorted(at):
        if at[place] not in expected:
            raise Failed(f"{topic} queue {place[0]} offset {place[1]} holds a message that nobody sent")
        queue, number, body = expected[at[place]]
        if queue != place[0]:
            raise Failed(f"{body} lies in queue {place[0]}")
        count[at[place]] += 1
        if number == last[queue] and body not in may_repeat and hidden_repeats > 0:
            hidden_repeats -= 1
            may_repeat.add(body)
        if number != last[queue] + 1 and not (body in may_repeat and number == last[queue]):
            raise Failed(f"queue {queue}: number {number} at offset {place[1]}, after number {last[queue]}")
        last[queue] = number
    for sha256, times in count.items():
        body = expected[sha256][2]
        if times == 0 or times > 1 and body not in may_repeat:
            raise Failed(f"{body} is stored {times} times")
    for queue, offsets in order.items():
        if offsets != sorted(offsets):
            raise Failed(f"queue {queue} was not delivered in order")


def flood_is_complete(consumer, topic, prefix):
    wanted = {Message(topic, f"{prefix}-{q}-{COUNT // COUNT_QUEUES - 1}").sha256 for q in range(COUNT_QUEUES)}
    seen = set()
    checked = [0]

    def enough(got):
        for one in got[checked[0]:]:
            seen.add((one["queue"], one["offset"]))
            wanted.discard(one["sha256"])
        checked[0] = len(got)
        return not wanted and len(seen) >= COUNT

    return enough, lambda: f"{len(seen)} of {COUNT} messages arrived"


@scenario(timeout=200, slow=True)
def count_10000(t):
    """10,000 messages over 8 queues, consumed exactly once and in order while they are sent."""
    topic = t.topic(queues=COUNT_QUEUES)
    consumer = t.consumer(topic, mode="orderly")
    repeated = t.producer(retries=0).flood(topic, COUNT, COUNT_QUEUES, "n", 90)
    if repeated:
        raise Failed(f"{len(repeated)} sends failed on a healthy node: {repeated[:3]}")
    got = consumer.wait(*flood_is_complete(consumer, topic, "n"), 90)
    time.sleep(0.5)
    got = consumer.got()
    if len(got) != COUNT:
        raise Failed(f"{len(got)} deliveries of {COUNT} messages")
    check_flood(got, topic, "n", repeated)


@scenario(node="sync", timeout=260)
def count_10000_across_sigkill(t):
    """The same while the node, flushing in sync mode, is killed with SIGKILL twice and started again."""
    try:
        topic = t.topic(queues=COUNT_QUEUES)
        consumer = t.consumer(topic, mode="orderly")
        producer = t.producer(retries=0)
        t.storm.join(t, lambda: producer.agent.acked.get(producer.name, 0))
        repeated = producer.flood(topic, COUNT, COUNT_QUEUES, "n", 150)
    finally:
        t.storm.leave(t)
    consumer.wait(*flood_is_complete(consumer, topic, "n"), 90)
    # The C++ library sends again by itself when the connection breaks under a send: one message a queue and kill.
    check_flood(consumer.got(), topic, "n", repeated, 2 * COUNT_QUEUES if t.kind.language == "cpp" else 0)
    for queue in range(COUNT_QUEUES):
        top = wire.max_offset(t.node, topic, queue)
        seen = {one["offset"] for one in consumer.got() if one["queue"] == queue}
        if seen != set(range(top)):
            raise Failed(f"queue {queue} ends at {top}; {len(seen)} of its offsets were delivered")


@scenario(languages=("go",), node="sync", timeout=260)
def state_across_sigkill(t):
    """Topics, committed offsets and delayed messages outlive the kills."""
    try:
        topic = t.topic(queues=4)
        producer = t.producer()
        messages = sample(topic, 40, "first") + sample(topic, 40, "second")
        producer.send(messages[:40])
        first = t.consumer(topic)
        first.expect(messages[:40])
        t.stop(first)
        check_committed(t, topic, first.group, 4)
        # The node writes offsets to disk every 5 s, for the first time after 10 s.
        time.sleep(11)
        before = [wire.consumer_offset(t.node, first.group, topic, queue) for queue in range(4)]
        delayed = Message(topic, "delayed by level 4", tag="late", delay=4)
        producer.send([delayed])
        t.storm.join(t, lambda: COUNT)
        if not t.storm.over.wait(150):
            raise Failed("the node was not killed and started again within 150 s")
    finally:
        t.storm.leave(t)
    after = [wire.consumer_offset(t.node, first.group, topic, queue) for queue in range(4)]
    if after != before:
        raise Failed(f"the group's offsets were {before} before the kills and are {after}")
    t.producer().send(messages[40:])
    got = t.consumer(topic).expect(messages[40:] + [delayed])
    took = got[-1]["at"] - got[-1]["born"]
    if took < 29_900:
        raise Failed(f"the delayed message came after {took} ms, the level says 30 s")


@scenario(languages=("all",), timeout=150)
def across_languages(t):
    """What one client sends, every other receives unchanged."""
    topic = t.topic(queues=4)
    sent = []
    tests = [Test(t.scenario, kind, t.node, t._agents, t._folder, t.ledger) for kind in t.kind.kinds]
    try:
        for test in tests:
            messages = sample(topic, 12, f"from-{test.kind.label}")
            test.producer().send(messages)
            sent += messages
        consumers = [test.consumer(topic, group=f"G_across_{test.kind.label}") for test in tests]
        for consumer in consumers:
            consumer.expect(sent, timeout=60)
    finally:
        for test in tests:
            test.close()
