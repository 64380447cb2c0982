"""A few remoting requests of the runner's own: what a check needs and the client under test has no call for."""

import json
import socket
import struct
import time

from store_reader import Record

TOPIC_CREATE, ROUTE, QUERY, MAX_OFFSET, CONSUMER_OFFSET, MEMBERS, PULL = 17, 105, 12, 30, 14, 38, 11
SEND, SEND_BATCH, COMMIT, VIEW, GROUP_CONFIG, MIN_OFFSET, DELETE_TOPIC = 310, 320, 15, 33, 352, 31, 215
OK, SYSTEM_ERROR, SYSTEM_BUSY, FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE = 0, 1, 2, 10, 14
TOPIC_NOT_EXIST, QUERY_NOT_FOUND = 17, 22


class Refused(Exception):
    def __init__(self, code, remark):
        super().__init__(f"code {code}: {remark}")
        self.code = code


class Connection:
    """A connection that asks one thing at a time, with JSON headers."""

    def __init__(self, address, timeout=10.0):
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout)

    def ask(self, code, ext, body=b""):
        """(code, remark, ext fields, body) of the answer."""
        self.send(code, ext, body)
        return self.read()

    def send(self, code, ext, body=b""):
        header = json.dumps({
            "code": code, "language": "JAVA", "version": 401, "opaque": 1, "flag": 0, "extFields": ext,
            "serializeTypeCurrentRPC": "JSON",
        }).encode()
        self.socket.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)

    def read(self):
        total = struct.unpack(">I", _read(self.socket, 4))[0]
        frame = _read(self.socket, total)
        header_len = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
        answer = json.loads(frame[4:4 + header_len])
        return answer["code"], answer.get("remark"), answer.get("extFields") or {}, frame[4 + header_len:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


def request(address, code, ext, body=b"", timeout=10.0):
    """One request on a connection of its own; (ext fields, body) of the answer."""
    with Connection(address, timeout) as connection:
        code, remark, ext, body = connection.ask(code, ext, body)
    if code != OK:
        raise Refused(code, remark)
    return ext, body


def properties_text(properties):
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def send_fields(topic, queue, properties=None, flag=0, batch=False):
    """Ext fields of a send; its body is the message's, or what `batch_body` gives."""
    return {
        "a": "interop_producer", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
        "g": str(int(time.time() * 1000)), "h": str(flag), "i": properties_text(properties or {}), "j": "0",
        "k": "false", "m": "true" if batch else "false",
    }


def batch_body(messages):
    """The body of a batch send: (body, properties) of each message."""
    out = b""
    for body, properties in messages:
        text = properties_text(properties).encode()
        out += struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body)) + body
        out += struct.pack(">h", len(text)) + text
    return out


def _read(conn, count):
    out = bytearray()
    while len(out) < count:
        part = conn.recv(count - len(out))
        if not part:
            raise ConnectionError("closed in the middle of an answer")
        out += part
    return bytes(out)


def route(name_server, topic):
    return json.loads(request(name_server, ROUTE, {"topic": topic})[1])


def create_topic(node, topic, queues):
    request(node.broker, TOPIC_CREATE, {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    })
    queue = route(node.name_server, topic)["queueDatas"][0]
    if (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) != (queues, queues, 6):
        raise AssertionError(f"route of {topic} after its creation with {queues} queues: {queue}")


def query_by_key(node, topic, key):
    try:
        _, body = request(node.broker, QUERY, {
            "topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0",
            "endTimestamp": str(int(time.time() * 1000) + 60_000),
        })
    except Refused as why:
        if why.code == QUERY_NOT_FOUND:
            return []
        raise
    return records(body)


def pull(node, topic, queue, offset, count=32):
    return [record for record, _ in pull_raw(node, topic, queue, offset, count)]


def pull_raw(node, topic, queue, offset, count=32, group="TOOLS_CONSUMER"):
    """(record, its bytes) of each message."""
    _, body = request(node.broker, PULL, {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    })
    out = []
    at = 0
    for record in records(body):
        out.append((record, body[at:at + record.size]))
        at += record.size
    return out


def pull_all(node, topic, queue):
    """Every record of a queue."""
    out = []
    top = max_offset(node, topic, queue)
    while len(out) < top:
        out += pull(node, topic, queue, len(out))
    return out


def view(node, phy):
    """The record at a physical offset, which is what a message id says beside an address."""
    (record,) = records(request(node.broker, VIEW, {"offset": str(phy)})[1])
    return record


def commit(node, group, topic, queue, offset):
    request(node.broker, COMMIT, {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset),
    })


def group_config(node, group):
    return json.loads(request(node.broker, GROUP_CONFIG, {"group": group})[1])


def records(body):
    out = []
    at = 0
    while at < len(body):
        out.append(Record.parse(body, at, 0))
        at += out[-1].size
    return out


def max_offset(node, topic, queue):
    return int(request(node.broker, MAX_OFFSET, {"topic": topic, "queueId": str(queue)})[0]["offset"])


def consumer_offset(node, group, topic, queue):
    """Where the group is in the queue; None if the node knows nothing of it."""
    try:
        ext, _ = request(node.broker, CONSUMER_OFFSET, {
            "consumerGroup": group, "topic": topic, "queueId": str(queue), "setZeroIfNotFound": "false",
        })
    except Refused as why:
        if why.code == QUERY_NOT_FOUND:
            return None
        raise
    return int(ext["offset"])


def members(node, group):
    try:
        return json.loads(request(node.broker, MEMBERS, {"consumerGroup": group})[1])["consumerIdList"]
    except Refused:
        return []
