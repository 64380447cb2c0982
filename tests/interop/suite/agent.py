"""A client process under test, spoken to in JSON lines: commands in, answers and events out."""

import base64
import hashlib
import json
import os
import subprocess
import threading
import time

from . import processes


class Failed(Exception):
    """What was expected of the node or client did not happen; the text says what."""


class Skipped(Exception):
    """The scenario asks for more than the node at hand is meant to give."""


class Kind:
    """A client at a version with a header type: what a scenario runs against."""

    def __init__(self, name, language, command, hello=None):
        self.name = name
        self.language = language
        self.command = command  # (name server, folder, brisk) -> argv
        self.hello = hello  # what the agent must say of itself

    @property
    def label(self):
        """The name in a form that topics and groups allow."""
        return "".join(c if c.isalnum() else "-" for c in self.name)


class Agent:
    """One client process. Calls block; consumed messages gather by consumer name."""

    def __init__(self, kind, name_server, folder, brisk=False):
        os.makedirs(folder, exist_ok=True)
        self.kind = kind
        self.stderr_path = os.path.join(folder, "stderr.log")
        with open(self.stderr_path, "ab") as stderr:
            self.process = processes.start(
                kind.command(name_server, folder, brisk), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
                cwd=folder, env={**os.environ, "HOME": folder})
        self.changed = threading.Condition()
        self.answers = {}
        self.events = {}  # consumer name -> list of messages
        self.acked = {}  # producer name -> count
        self.ended = False
        self.next_rq = 0
        threading.Thread(target=self._read, daemon=True).start()
        if kind.hello is not None:
            said = self.call("hello")
            if not all(said.get(name) == value for name, value in kind.hello.items()):
                raise Failed(f"the agent runs {said}, expected {kind.hello}")

    def _read(self):
        for line in self.process.stdout:
            if not line.endswith(b"\n"):
                break  # the process ended within a line
            message = json.loads(line)
            with self.changed:
                if "rq" in message:
                    self.answers[message["rq"]] = message
                elif message["ev"] == "msg":
                    self.events.setdefault(message["c"], []).append(message)
                elif message["ev"] == "acked":
                    self.acked[message["producer"]] = message["count"]
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def call(self, op, timeout=60.0, **fields):
        with self.changed:
            self.next_rq += 1
            rq = self.next_rq
            line = json.dumps({"rq": rq, "op": op, **fields}).encode() + b"\n"
            try:
                self.process.stdin.write(line)
                self.process.stdin.flush()
            except OSError:
                raise Failed(f"the client process is gone: {self.stderr_tail()}") from None
            self.changed.wait_for(lambda: rq in self.answers or self.ended, timeout)
            answer = self.answers.pop(rq, None)
        if answer is None:
            raise Failed(f"{op}: the client process ended: {self.stderr_tail()}" if self.ended
                         else f"{op} took longer than {timeout} s")
        if "error" in answer:
            raise Failed(f"{op}: {answer['error']}")
        return answer

    def kill(self):
        processes.kill(self.process)

    def stderr_tail(self):
        with open(self.stderr_path, "rb") as file:
            return file.read()[-800:].decode("utf-8", "replace").strip()


class Message:
    """A message as a scenario wants it sent, and so as it must arrive."""

    def __init__(self, topic, body, tag=None, keys=None, props=None, flag=None, delay=None, queue=None):
        self.topic = topic
        self.body = body.encode() if isinstance(body, str) else body
        self.tag = tag
        self.keys = keys
        self.props = props or {}
        self.flag = flag
        self.delay = delay
        self.queue = queue
        self.sha256 = hashlib.sha256(self.body).hexdigest()

    def command(self):
        out = {"topic": self.topic, "b64": base64.b64encode(self.body).decode()}
        for name in ("tag", "keys", "flag", "delay", "queue"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        if self.props:
            out["props"] = self.props
        return out

    def differs(self, got, topic=None):
        """What of a received message is not as it was sent; None if nothing."""
        want = {
            "topic": topic or self.topic, "sha256": self.sha256, "len": len(self.body), "tag": self.tag or "",
            "keys": self.keys or "",
        }
        if "flag" in got:
            want["flag"] = self.flag or 0
        for name, value in want.items():
            # A client shows an absent tag or key as null, as nothing or as an empty text.
            found = got.get(name) or "" if name in ("tag", "keys") else got.get(name)
            if found != value:
                return f"{name} is {found!r}, expected {value!r}"
        for name, value in self.props.items():
            if got["props"].get(name) != value:
                return f"property {name} is {got['props'].get(name)!r}, expected {value!r}"
        if self.queue is not None and got["queue"] != self.queue and topic is None:
            return f"queue is {got['queue']}, expected {self.queue}"
        return None


def text_of(got):
    """A short name of a received message for a failure line."""
    if "b64" in got:
        return base64.b64decode(got["b64"]).decode("utf-8", "replace")[:80]
    return f"{got['len']} bytes {got['sha256'][:12]}"


class Producer:
    def __init__(self, test, agent, name, **options):
        self.test = test
        self.agent = agent
        self.name = name
        agent.call("producer", name=name, group=f"P_{name}", **options)

    def send(self, messages, how="sync"):
        """Sends and checks the results: all stored, each with an id of its own. The results, in order."""
        answer = self.agent.call("send", producer=self.name, how=how, messages=[m.command() for m in messages])
        results = answer["results"]
        expected = {"oneway": 0, "batch": 1}.get(how, len(messages))
        if len(results) != expected:
            raise Failed(f"{how} send of {len(messages)} gave {len(results)} results")
        for result in results:
            if result.get("status") != "SEND_OK":
                raise Failed(f"{how} send was answered {result}")
        ids = {result["msg_id"] for result in results}
        if len(ids) != len(results):
            raise Failed(f"{how} send: message ids are not all different: {results}")
        if how in ("sync", "async"):
            for message, result in zip(messages, results):
                if message.delay is None:
                    place = (message.topic, result.get("queue"), result["queue_offset"])
                    self.test.ledger.append((*place, message.sha256))
        return results

    def flood(self, topic, count, queues, prefix, timeout):
        """Sends `count` numbered messages with one sender a queue; the bodies whose first send was not acked."""
        answer = self.agent.call("flood", timeout=timeout + 10, producer=self.name, topic=topic, count=count,
                                 queues=queues, prefix=prefix, timeout_ms=int(timeout * 1000))
        if len(answer["places"]) != count:
            raise Failed(f"{len(answer['places'])} of {count} messages were acked within {timeout} s; "
                         f"{len(answer['repeated'])} sends failed")
        for body, queue, offset in answer["places"]:
            self.test.ledger.append((topic, queue, offset, hashlib.sha256(body.encode()).hexdigest()))
        return answer["repeated"]

    def stop(self):
        self.agent.call("stop_producer", name=self.name)


class Consumer:
    # The C++ library gives a property by name only, so the names that scenarios look at are listed.
    PROPERTIES = ["color", "note", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "REAL_TOPIC", "DELAY"]

    def __init__(self, test, agent, name, group, topics, mode="concurrent", **options):
        self.test = test
        self.agent = agent
        self.name = name
        self.group = group
        if isinstance(topics, str):
            topics = {topics: "*"}
        agent.call("consumer", name=name, group=group, topics=topics, mode=mode, props=self.PROPERTIES, **options)

    def got(self):
        with self.agent.changed:
            return list(self.agent.events.get(self.name, []))

    def wait(self, enough, what, timeout=45.0):
        """Until `enough(messages so far)`; the messages."""
        deadline = time.monotonic() + timeout
        while True:
            got = self.got()
            if enough(got):
                return got
            left = deadline - time.monotonic()
            if left <= 0 or self.agent.ended:
                gone = f"; the client process ended: {self.agent.stderr_tail()}" if self.agent.ended else ""
                raise Failed(f"{what()} within {timeout:.0f} s{gone}")
            self.test.node.check_alive()
            with self.agent.changed:
                if len(self.agent.events.get(self.name, [])) == len(got):
                    self.agent.changed.wait(min(left, 0.5))

    def wait_count(self, count, timeout=45.0):
        return self.wait(lambda got: len(got) >= count,
                         lambda: f"got {len(self.got())} of {count} messages", timeout)

    def wait_all(self, messages, timeout=45.0, after=0):
        """Until each of these messages arrived at least once, the first `after` arrivals not counted."""
        wanted = {m.sha256 for m in messages}
        if len(wanted) != len(messages):
            raise ValueError("the messages of a scenario must differ")

        def missing(got):
            return len(wanted - {one["sha256"] for one in got[after:]})

        return self.wait(lambda got: not missing(got),
                         lambda: f"{missing(self.got())} of {len(wanted)} messages did not arrive at {self.name}", timeout)

    def expect(self, messages, timeout=45.0, topic=None, quiet=0.5, after=0):
        """Waits for exactly these messages, each once and unchanged; the received ones in the order of `messages`.

        `after`: how many earlier ones have been looked at.
        """
        self.wait_all(messages, timeout, after)
        time.sleep(quiet)
        got = self.got()[after:]
        by_body = {}
        for one in got:
            by_body.setdefault(one["sha256"], []).append(one)
        ordered = []
        for message in messages:
            found = by_body.pop(message.sha256, [])
            name = message.body[:60]
            if len(found) != 1:
                raise Failed(f"{name!r} arrived {len(found)} times")
            why = message.differs(found[0], topic)
            if why:
                raise Failed(f"{name!r}: {why}")
            ordered.append(found[0])
        if by_body:
            raise Failed(f"unexpected messages: {[text_of(v[0]) for v in by_body.values()][:5]}")
        return ordered

    def seek(self, offset):
        """Goes on from here in each queue that this consumer was assigned."""
        self.agent.call("seek", name=self.name, offset=offset)

    def stop(self):
        self.agent.call("stop_consumer", name=self.name)
