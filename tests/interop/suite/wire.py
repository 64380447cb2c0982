"""A few remoting requests of the runner's own: what a check needs and the client under test has no call for."""

import json
import socket
import struct
import time

from store_reader import Record

TOPIC_CREATE, ROUTE, QUERY, MAX_OFFSET, CONSUMER_OFFSET, MEMBERS, PULL = 17, 105, 12, 30, 14, 38, 11
OK, TOPIC_NOT_EXIST, QUERY_NOT_FOUND = 0, 17, 22


class Refused(Exception):
    def __init__(self, code, remark):
        super().__init__(f"code {code}: {remark}")
        self.code = code


def request(address, code, ext, body=b"", timeout=10.0):
    """One request with a JSON header on a connection of its own; (ext fields, body) of the answer."""
    header = json.dumps({
        "code": code, "language": "JAVA", "version": 401, "opaque": 1, "flag": 0, "extFields": ext,
        "serializeTypeCurrentRPC": "JSON",
    }).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout) as conn:
        conn.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        total = struct.unpack(">I", _read(conn, 4))[0]
        frame = _read(conn, total)
    header_len = struct.unpack(">I", frame[:4])[0] & 0xFFFFFF
    answer = json.loads(frame[4:4 + header_len])
    if answer["code"] != OK:
        raise Refused(answer["code"], answer.get("remark"))
    return answer.get("extFields") or {}, frame[4 + header_len:]


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
    _, body = request(node.broker, PULL, {
        "consumerGroup": "TOOLS_CONSUMER", "topic": topic, "queueId": str(queue), "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subscription": "*", "subVersion": "0", "expressionType": "TAG",
    })
    return records(body)


def pull_all(node, topic, queue):
    """Every record of a queue."""
    out = []
    top = max_offset(node, topic, queue)
    while len(out) < top:
        out += pull(node, topic, queue, len(out))
    return out


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
