"""The node under test, on free loopback ports with a store folder of its own."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from typing import NamedTuple

from . import processes, wire
from .agent import Agent, Failed, Kind

BROKER_NAME = "broker-a"
JAVA_VERSION = "V5_3_3"


class Sizes(NamedTuple):
    """Of the files of a store; a store is opened with the sizes it was made with."""

    commitlog_file: int
    consumequeue_file: int
    index_slots: int
    index_units: int
    message_max: int = 4 << 20


# Small, so that a run fills several files of each kind.
SMALL = Sizes(commitlog_file=16 << 20, consumequeue_file=20_000, index_slots=5_000, index_units=20_000)

_taken = set()


def free_ports():
    """(broker port, name server port); the broker also uses port - 2 (VIP) and, if it is Java's, port + 1."""
    for _ in range(500):
        port = random.randrange(15_000, 30_000, 10)
        wanted = [port, port - 2, port + 1, port + 4]
        if port not in _taken and all(_is_free(p) for p in wanted):
            _taken.add(port)
            return port, port + 4
    raise RuntimeError("no free ports on 127.0.0.1")


def _is_free(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


class Node:
    """What both kinds of node have in common: addresses, folder, readiness, a log file."""

    is_java = False

    def __init__(self, folder, sizes, store=None, host="127.0.0.1"):
        self.folder = folder
        self.sizes = sizes
        self.store = store or os.path.join(folder, "store")
        os.makedirs(self.store, exist_ok=True)
        os.makedirs(folder, exist_ok=True)
        port, name_server_port = free_ports()
        self.broker = f"{host}:{port}"
        self.name_server = f"127.0.0.1:{name_server_port}"
        self.port = port
        self.log_path = os.path.join(folder, "node.log")
        self.process = None
        self.died = None

    def _spawn(self, command, **options):
        with open(self.log_path, "ab") as log:
            return processes.start(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)

    def wait_ready(self, seconds):
        """Until the name server gives the route of TBW102 and the broker answers; the seconds it took."""
        since = time.monotonic()
        while True:
            try:
                wire.route(self.name_server, "TBW102")
                wire.max_offset(self, "TBW102", 0)
                return time.monotonic() - since
            except (OSError, wire.Refused) as why:
                if self.process.poll() is not None:
                    raise AssertionError(f"the node ended with {self.process.returncode} at start: {self.log_tail()}")
                if time.monotonic() - since > seconds:
                    raise AssertionError(f"the node was not ready within {seconds} s ({why}): {self.log_tail()}")
            time.sleep(0.02)

    def check_alive(self):
        """Raises if the node ended without being told to."""
        if self.process is not None and self.process.poll() is not None:
            raise AssertionError(f"the node ended by itself with {self.process.returncode}: {self.log_tail()}")

    def log_tail(self):
        try:
            with open(self.log_path, "rb") as log:
                return log.read()[-1500:].decode("utf-8", "replace").strip()
        except OSError:
            return ""


class Kerolox(Node):
    def __init__(self, folder, flush, binary, sizes=SMALL, store=None, append="auto", host="127.0.0.1", **others):
        """`others`: settings beside these, their dots written as two underscores."""
        super().__init__(folder, sizes, store, host)
        self.binary = binary
        self.config = os.path.join(folder, "kerolox.toml")
        settings = {
            "broker.name": BROKER_NAME,
            "net.listen": self.broker,
            "nameserver.embedded": self.name_server,
            "metrics.listen": "off",
            "store.root": self.store,
            "store.append": append,
            "store.commitlog_file_size": sizes.commitlog_file,
            "store.consumequeue_file_size": sizes.consumequeue_file,
            "store.index_slots": sizes.index_slots,
            "store.index_entries": sizes.index_units,
            "limits.max_message_size": sizes.message_max,
            # Not the default 200: on a busy machine a disk may stall longer, and the Go client gives a refused send up. The
            # two together must be less than 3 s.
            "limits.put_wait_ms": 1400,
            "flush.sync_timeout_ms": 1500,
            "flush.mode": flush,
            **{key.replace("__", "."): value for key, value in others.items()},
        }
        with open(self.config, "w") as file:
            file.writelines(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())

    def start(self):
        self.process = self._spawn([self.binary, "serve", "--config", self.config])
        return self.wait_ready(30)

    def kill(self):
        process, self.process = self.process, None
        processes.kill(process)

    def stop(self):
        """A polite stop; the seconds it took."""
        process, self.process = self.process, None
        if process is None:
            return 0.0
        since = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(10)
        except subprocess.TimeoutExpired:
            processes.kill(process)
            raise AssertionError(f"still running 10 s after SIGTERM: {self.log_tail()}") from None
        processes.ended(process)
        if code != 0:
            raise AssertionError(f"exit code {code} after SIGTERM: {self.log_tail()}")
        return time.monotonic() - since


class JavaBroker(Node):
    """A Java name server and broker in place of the node: shows that a scenario asks for no more than Java gives."""

    is_java = True

    def __init__(self, folder, flush, jars):
        super().__init__(folder, SMALL)
        self.jars = jars
        self.names = None
        self.broker_conf = os.path.join(folder, "broker.conf")
        self.names_conf = os.path.join(folder, "namesrv.conf")
        with open(self.broker_conf, "w") as file:
            file.write(f"""brokerName={BROKER_NAME}
brokerClusterName=DefaultCluster
brokerId=0
brokerIP1=127.0.0.1
bindAddress=127.0.0.1
listenPort={self.port}
namesrvAddr={self.name_server}
storePathRootDir={self.store}
storePathCommitLog={self.store}/commitlog
mappedFileSizeCommitLog={SMALL.commitlog_file}
mappedFileSizeConsumeQueue={SMALL.consumequeue_file}
maxHashSlotNum={SMALL.index_slots}
maxIndexNum={SMALL.index_units}
flushDiskType={'SYNC_FLUSH' if flush == 'sync' else 'ASYNC_FLUSH'}
timerWheelEnable=false
""")
        with open(self.names_conf, "w") as file:
            file.write(f"listenPort={self.name_server.rpartition(':')[2]}\nbindAddress=127.0.0.1\n")

    def _java(self, heap, main, conf):
        return self._spawn([
            "java", f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:MaxDirectMemorySize=512m",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Duser.home={self.folder}",
            f"-Drocketmq.home.dir={self.folder}", "-cp", os.path.join(self.jars, "*"), main, "-c", conf,
        ])

    def start(self):
        if self.names is None:
            self.names = self._java("256m", "org.apache.rocketmq.namesrv.NamesrvStartup", self.names_conf)
        self.process = self._java("768m", "org.apache.rocketmq.broker.BrokerStartup", self.broker_conf)
        return self.wait_ready(60)

    def kill(self):
        process, self.process = self.process, None
        processes.kill(process)

    def stop(self):
        since = time.monotonic()
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            processes.ended(self.process)
            self.process = None
        if self.names is not None:
            processes.kill(self.names)
            self.names = None
        return time.monotonic() - since


class JavaStore(Node):
    """The real Java broker opened on a store directory by agents/java/StoreAgent.java, spoken to in JSON lines."""

    is_java = True

    def __init__(self, folder, flush, class_path, sizes, store):
        super().__init__(folder, sizes, store)
        self.flush = f"{flush.upper()}_FLUSH"
        self.class_path = class_path
        self.agent = None

    def start(self):
        """The seconds it took and, as the broker saw it, whether the store was left by a crash."""
        since = time.monotonic()
        self.agent = Agent(Kind("java-store", "java", self._command, {"version": JAVA_VERSION}), None, self.folder)
        said = self.agent.call(
            "open", root=self.store, port=self.port, broker=BROKER_NAME, flush=self.flush, **self.sizes._asdict())
        return time.monotonic() - since, said["crashed"]

    def _command(self, _name_server, folder, _brisk):
        return [
            "java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:MaxDirectMemorySize=512m",
            "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
            "--add-opens=java.base/java.nio=ALL-UNNAMED", f"-Duser.home={folder}", f"-Drocketmq.home.dir={folder}",
            # The disk that the suite runs on may be fuller than Java likes.
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
            "-Drocketmq.broker.diskSpaceCleanForciblyRatio=0.98", "-cp", self.class_path, "StoreAgent",
        ]

    def stop(self):
        since = time.monotonic()
        self.agent.call("close")
        self.agent.kill()
        return time.monotonic() - since

    def kill(self):
        """Runtime.halt, from within."""
        try:
            self.agent.call("halt")
        except Failed:
            pass
        self.agent.kill()

    def process_ended(self, seconds):
        """Until the broker has halted by itself and all it said is heard."""
        with self.agent.changed:
            if not self.agent.changed.wait_for(lambda: self.agent.ended, seconds):
                raise Failed(f"the Java broker still runs after {seconds} s")
        self.agent.kill()
