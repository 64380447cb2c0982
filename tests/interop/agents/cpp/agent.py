"""Drives the C++ client for the interop suite, through the C functions of the librocketmq that the PyPI wheel carries.

Takes one JSON command a line on standard input, answers with one JSON line each on standard output, and reports every
consumed message as an event line; the commands and events are described in tests/interop/README.md. Run as
`agent.py NAME_SERVER LIBRARY`. It ends when its standard input does.
"""

import base64
import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes import POINTER, c_char, c_char_p, c_int, c_longlong, c_void_p

INLINE_BODY_MAX = 1024
SEND_STATUS = {0: "SEND_OK", 1: "FLUSH_DISK_TIMEOUT", 2: "FLUSH_SLAVE_TIMEOUT", 3: "SLAVE_NOT_AVAILABLE"}
CONSUMED, LATER = 0, 1
BROADCASTING, CLUSTERING = 0, 1


class SendResult(ctypes.Structure):
    _fields_ = [("status", c_int), ("msg_id", c_char * 256), ("offset", c_longlong)]


class Failure(ctypes.Structure):
    _fields_ = [
        ("error", c_int), ("line", c_int), ("file", c_char * 512), ("msg", c_char * 512), ("type", c_char * 512),
    ]


ON_SENT = ctypes.CFUNCTYPE(None, SendResult)
ON_FAILED = ctypes.CFUNCTYPE(None, Failure)
SELECTOR = ctypes.CFUNCTYPE(c_int, c_int, c_void_p, c_void_p)
ON_MESSAGE = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

FUNCTIONS = {
    "CreateMessage": (c_void_p, [c_char_p]),
    "DestroyMessage": (c_int, [c_void_p]),
    "SetMessageKeys": (c_int, [c_void_p, c_char_p]),
    "SetMessageTags": (c_int, [c_void_p, c_char_p]),
    "SetByteMessageBody": (c_int, [c_void_p, c_char_p, c_int]),
    "SetMessageProperty": (c_int, [c_void_p, c_char_p, c_char_p]),
    "SetDelayTimeLevel": (c_int, [c_void_p, c_int]),
    "CreateBatchMessage": (c_void_p, []),
    "AddMessage": (c_int, [c_void_p, c_void_p]),
    "DestroyBatchMessage": (c_int, [c_void_p]),
    "CreateProducer": (c_void_p, [c_char_p]),
    "SetProducerNameServerAddress": (c_int, [c_void_p, c_char_p]),
    "SetProducerInstanceName": (c_int, [c_void_p, c_char_p]),
    "SetProducerSendMsgTimeout": (c_int, [c_void_p, c_int]),
    "SetProducerMaxMessageSize": (c_int, [c_void_p, c_int]),
    "SetProducerCompressMsgBodyOverHowmuch": (c_int, [c_void_p, c_int]),
    "StartProducer": (c_int, [c_void_p]),
    "ShutdownProducer": (c_int, [c_void_p]),
    "SendMessageSync": (c_int, [c_void_p, c_void_p, POINTER(SendResult)]),
    "SendMessageAsync": (c_int, [c_void_p, c_void_p, ON_SENT, ON_FAILED]),
    "SendMessageOneway": (c_int, [c_void_p, c_void_p]),
    "SendMessageOrderly": (c_int, [c_void_p, c_void_p, SELECTOR, c_void_p, c_int, POINTER(SendResult)]),
    "SendBatchMessage": (c_int, [c_void_p, c_void_p, POINTER(SendResult)]),
    "CreatePushConsumer": (c_void_p, [c_char_p]),
    "SetPushConsumerNameServerAddress": (c_int, [c_void_p, c_char_p]),
    "SetPushConsumerInstanceName": (c_int, [c_void_p, c_char_p]),
    "SetPushConsumerMessageModel": (c_int, [c_void_p, c_int]),
    "SetPushConsumerThreadCount": (c_int, [c_void_p, c_int]),
    "Subscribe": (c_int, [c_void_p, c_char_p, c_char_p]),
    "RegisterMessageCallback": (c_int, [c_void_p, ON_MESSAGE]),
    "RegisterMessageCallbackOrderly": (c_int, [c_void_p, ON_MESSAGE]),
    "StartPushConsumer": (c_int, [c_void_p]),
    "ShutdownPushConsumer": (c_int, [c_void_p]),
    "GetLatestErrorMessage": (c_char_p, []),
    "GetMessageTopic": (c_char_p, [c_void_p]),
    "GetMessageTags": (c_char_p, [c_void_p]),
    "GetMessageKeys": (c_char_p, [c_void_p]),
    "GetMessageBody": (c_char_p, [c_void_p]),
    "GetMessageProperty": (c_char_p, [c_void_p, c_char_p]),
    "GetMessageId": (c_char_p, [c_void_p]),
    "GetMessageQueueId": (c_int, [c_void_p]),
    "GetMessageReconsumeTimes": (c_int, [c_void_p]),
    "GetMessageStoreSize": (c_int, [c_void_p]),
    "GetMessageBornTimestamp": (c_longlong, [c_void_p]),
    "GetMessageStoreTimestamp": (c_longlong, [c_void_p]),
    "GetMessageQueueOffset": (c_longlong, [c_void_p]),
}

# The library may print to standard output; the answers keep a descriptor of their own.
OUT = os.fdopen(os.dup(1), "wb", buffering=0)
os.dup2(2, 1)
OUT_LOCK = threading.Lock()


def emit(line):
    data = json.dumps(line).encode() + b"\n"
    with OUT_LOCK:
        OUT.write(data)


class Agent:
    def __init__(self, name_server, library):
        self.name_server = name_server.encode()
        self.lib = ctypes.CDLL(library)
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(self.lib, name)
            function.restype = result
            function.argtypes = arguments
        self.producers = {}
        self.consumers = {}
        self.kept = []  # callbacks that the library may still call
        # The argument is the queue number plus one: the library refuses a null pointer.
        self.select = SELECTOR(lambda count, _message, argument: (argument - 1) % count)

    def check(self, status):
        if status != 0:
            why = self.lib.GetLatestErrorMessage() or b""
            raise RuntimeError(f"status {status}: {why.decode('utf-8', 'replace')}")

    def answer(self, command):
        try:
            answer = getattr(self, "op_" + command["op"])(command) or {}
        except Exception as why:
            answer = {"error": f"{type(why).__name__}: {why}"}
        answer["rq"] = command["rq"]
        emit(answer)

    def patiently(self, send):
        """Calls `send` until it does not fail for want of a route.

        Threads that first use a topic at the same time look its route up under a lock that they only try to take; the
        losers fail without having sent anything.
        """
        for _ in range(50):
            status = send()
            if status == 0 or b"No route info of this topic" not in (self.lib.GetLatestErrorMessage() or b""):
                break
            time.sleep(0.1)
        return status

    # ---- producers

    def op_producer(self, c):
        lib = self.lib
        producer = lib.CreateProducer(c["group"].encode())
        self.check(lib.SetProducerNameServerAddress(producer, self.name_server))
        self.check(lib.SetProducerInstanceName(producer, c["name"].encode()))
        self.check(lib.SetProducerSendMsgTimeout(producer, 10000))
        self.check(lib.SetProducerMaxMessageSize(producer, 4 << 20))
        if "compress_over" in c:
            self.check(lib.SetProducerCompressMsgBodyOverHowmuch(producer, c["compress_over"]))
        self.check(lib.StartProducer(producer))
        self.producers[c["name"]] = producer

    def op_stop_producer(self, c):
        self.check(self.lib.ShutdownProducer(self.producers.pop(c["name"])))

    def message(self, m):
        lib = self.lib
        message = lib.CreateMessage(m["topic"].encode())
        body = base64.b64decode(m["b64"])
        self.check(lib.SetByteMessageBody(message, body, len(body)))
        if "tag" in m:
            self.check(lib.SetMessageTags(message, m["tag"].encode()))
        if "keys" in m:
            self.check(lib.SetMessageKeys(message, m["keys"].encode()))
        if "delay" in m:
            self.check(lib.SetDelayTimeLevel(message, m["delay"]))
        for name, value in m.get("props", {}).items():
            self.check(lib.SetMessageProperty(message, name.encode(), value.encode()))
        return message

    @staticmethod
    def result(r):
        status = SEND_STATUS.get(r.status, str(r.status))
        return {"status": status, "msg_id": r.msg_id.decode(), "queue_offset": r.offset}

    def op_send(self, c):
        lib = self.lib
        producer = self.producers[c["producer"]]
        messages = [self.message(m) for m in c["messages"]]
        results = []
        if c["how"] == "sync":
            for given, message in zip(c["messages"], messages):
                out = SendResult()
                if "queue" in given:
                    self.check(self.patiently(
                        lambda: lib.SendMessageOrderly(producer, message, self.select, given["queue"] + 1, 3, out)))
                else:
                    self.check(self.patiently(lambda: lib.SendMessageSync(producer, message, out)))
                results.append(self.result(out))
        elif c["how"] == "oneway":
            for message in messages:
                self.check(self.patiently(lambda: lib.SendMessageOneway(producer, message)))
        elif c["how"] == "batch":
            batch = lib.CreateBatchMessage()
            for message in messages:
                self.check(lib.AddMessage(batch, message))
            out = SendResult()
            self.check(self.patiently(lambda: lib.SendBatchMessage(producer, batch, out)))
            results.append(self.result(out))
            # Destroying the batch destroys its messages.
            messages = []
            lib.DestroyBatchMessage(batch)
        elif c["how"] == "async":
            results = self.send_async(producer, messages)
        for message in messages:
            lib.DestroyMessage(message)
        return {"results": results}

    def send_async(self, producer, messages):
        left = threading.Semaphore(0)
        results = [None] * len(messages)
        for slot, message in enumerate(messages):
            def sent(r, slot=slot):
                results[slot] = self.result(r)
                left.release()

            def failed(why, slot=slot):
                results[slot] = {"error": why.msg.decode("utf-8", "replace")}
                left.release()

            callbacks = ON_SENT(sent), ON_FAILED(failed)
            self.kept.append(callbacks)
            self.check(self.patiently(lambda: self.lib.SendMessageAsync(producer, message, *callbacks)))
        for _ in messages:
            if not left.acquire(timeout=30):
                raise RuntimeError("an async send was never answered")
        return results

    def op_flood(self, c):
        """One sender a queue; each sends its bodies "prefix-queue-number" in order, and each until it is acked."""
        producer = self.producers[c["producer"]]
        deadline = time.monotonic() + c["timeout_ms"] / 1000
        repeated = []
        places = []
        acked = [0]
        lock = threading.Lock()

        def sender(queue):
            for i in range(c["count"] // c["queues"]):
                body = f"{c['prefix']}-{queue}-{i}".encode()
                message = self.message({"topic": c["topic"], "b64": base64.b64encode(body)})
                while time.monotonic() < deadline:
                    out = SendResult()
                    status = self.patiently(
                        lambda: self.lib.SendMessageOrderly(producer, message, self.select, queue + 1, 0, out))
                    if status == 0 and out.status == 0:
                        places.append([body.decode(), queue, out.offset])
                        break
                    repeated.append(body.decode())
                    time.sleep(0.2)
                self.lib.DestroyMessage(message)
                with lock:
                    acked[0] += 1
                    if acked[0] % 500 == 0:
                        emit({"ev": "acked", "producer": c["producer"], "count": acked[0]})

        threads = [threading.Thread(target=sender, args=(queue,)) for queue in range(c["queues"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"repeated": repeated, "places": places}

    # ---- consumers

    def op_consumer(self, c):
        lib = self.lib
        consumer = lib.CreatePushConsumer(c["group"].encode())
        self.check(lib.SetPushConsumerNameServerAddress(consumer, self.name_server))
        self.check(lib.SetPushConsumerInstanceName(consumer, c["name"].encode()))
        self.check(lib.SetPushConsumerThreadCount(consumer, 4))
        model = BROADCASTING if c.get("model") == "broadcast" else CLUSTERING
        self.check(lib.SetPushConsumerMessageModel(consumer, model))
        for topic, expression in c["topics"].items():
            self.check(lib.Subscribe(consumer, topic.encode(), expression.encode()))
        callback = ON_MESSAGE(self.taker(c))
        self.kept.append(callback)
        if c["mode"] == "orderly":
            self.check(lib.RegisterMessageCallbackOrderly(consumer, callback))
        else:
            self.check(lib.RegisterMessageCallback(consumer, callback))
        self.check(lib.StartPushConsumer(consumer))
        self.consumers[c["name"]] = consumer

    def op_stop_consumer(self, c):
        self.check(self.lib.ShutdownPushConsumer(self.consumers.pop(c["name"])))

    def taker(self, c):
        """Reports each message, and fails those that `fail` names: body to the number of attempts that fail."""
        lib = self.lib
        lock = threading.Lock()
        busy = {}
        attempts = {}
        times = c.get("fail", {})

        def text(value):
            return value.decode("utf-8", "replace") if value else ""

        def take(_consumer, message):
            place = (text(lib.GetMessageTopic(message)), lib.GetMessageQueueId(message))
            body = lib.GetMessageBody(message) or b""
            good = True
            with lock:
                busy[place] = together = busy.get(place, 0) + 1
                if len(body) <= INLINE_BODY_MAX and body.decode("utf-8", "replace") in times:
                    attempts[body] = attempts.get(body, 0) + 1
                    good = attempts[body] > times[body.decode()]
            event = {
                "ev": "msg", "c": c["name"], "good": good, "together": together, "len": len(body),
                "sha256": hashlib.sha256(body).hexdigest(), "topic": place[0], "queue": place[1],
                "tag": text(lib.GetMessageTags(message)), "keys": text(lib.GetMessageKeys(message)),
                "props": {name: text(lib.GetMessageProperty(message, name.encode())) for name in c.get("props", [])},
                "offset": lib.GetMessageQueueOffset(message), "reconsume": lib.GetMessageReconsumeTimes(message),
                "msg_id": text(lib.GetMessageId(message)), "born": lib.GetMessageBornTimestamp(message),
                "stored": lib.GetMessageStoreTimestamp(message), "store_size": lib.GetMessageStoreSize(message),
                "at": int(time.time() * 1000),
            }
            if len(body) <= INLINE_BODY_MAX:
                event["b64"] = base64.b64encode(body).decode()
            emit(event)
            with lock:
                busy[place] -= 1
            return CONSUMED if good else LATER

        return take


def main():
    agent = Agent(sys.argv[1], sys.argv[2])
    workers = ThreadPoolExecutor(16)
    for line in sys.stdin.buffer:
        workers.submit(agent.answer, json.loads(line))
    # The library's threads outlive a polite exit.
    os._exit(0)


main()
