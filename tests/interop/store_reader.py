#!/usr/bin/env python3
"""Reads a RocketMQ store folder and checks that everything in it agrees with everything else.

Written from the store specification alone (sections 1 to 4 and the invariants I1 to I19 of 13.1) and sharing no
code with the node, so a mistake in the node's idea of the format cannot hide in its own reader. It reads stores of
Kerolox and of the Java broker, stopped cleanly or killed (then `abort` is there, and a torn tail is allowed).

    store_reader.py FOLDER                                   production file sizes
    store_reader.py FOLDER --commitlog-file-size 16MiB ...   other sizes, as the store was made with
    store_reader.py FOLDER --dump                            one JSON line a record as well

Exit code 0: consistent; 1: at least one finding, each printed on a line with the invariant it breaks; 2: bad usage.
All numbers on disk are signed and big-endian.
"""

import argparse
import array
import json
import os
import re
import struct
import sys
import zlib
from collections import defaultdict

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194
UNIT_LEN = 20
PRE_BLANK = (0, 0x7FFFFFFF, 0)
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = [1000 * s for s in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)]
CHECKPOINT_LEN = 4096
INDEX_HEADER_LEN = 40
INDEX_SLOT_LEN = 4
INDEX_UNIT_LEN = 20
# A tags code at or below this is the address of a unit in consumequeue_ext, not a hash.
EXT_ADDRESS_MAX = -2147483649

COMPRESSED = 0x1
TRANSACTION_BITS = 0xC
PREPARED = 0x4
ROLLBACK = 0xC
BORN_V6 = 0x10
STORE_V6 = 0x20
SYS_FLAG_BITS = 0x7FF


def java_hash(text):
    """String.hashCode of Java: over UTF-16 code units, wrapping in 32 bits, signed."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2]):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(topic, key):
    value = java_hash(topic + "#" + key)
    return 0 if value == -(1 << 31) else abs(value)


def parse_properties(text):
    """Name to value; what Java's decoder drops is dropped, the last of a repeated name wins."""
    out = {}
    for segment in text.split("\x02"):
        name, separator, value = segment.partition("\x01")
        if len(segment) >= 3 and separator and name and value:
            out[name] = value
    return out


class BadRecord(Exception):
    pass


class Record:
    """One message record; `parse` checks the length formula (I5), the caller the rest."""

    __slots__ = (
        "phy", "size", "version", "crc", "queue_id", "flag", "queue_offset", "own_phy", "sys_flag", "born",
        "born_host", "stored", "store_host", "reconsume_times", "prepared_offset", "raw_body", "topic", "properties",
    )

    @classmethod
    def parse(cls, data, at, phy):
        def take(fmt, pos):
            try:
                return struct.unpack_from(fmt, data, pos)
            except struct.error:
                raise BadRecord("cut off") from None

        self = cls()
        self.phy = phy
        self.size, magic = take(">iI", at)
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise BadRecord(f"magic {magic:08x} is none of ours")
        if self.size < 91 or at + self.size > len(data):
            raise BadRecord(f"size {self.size} does not fit the file")
        self.version = 1 if magic == MAGIC_V1 else 2
        self.crc, self.queue_id, self.flag, self.queue_offset, self.own_phy, self.sys_flag, self.born = take(
            ">iiiqqiq", at + 8)
        pos = at + 48
        self.born_host, pos = cls._host(data, pos, self.sys_flag & BORN_V6)
        (self.stored,) = take(">q", pos)
        self.store_host, pos = cls._host(data, pos + 8, self.sys_flag & STORE_V6)
        self.reconsume_times, self.prepared_offset, body_len = take(">iqi", pos)
        pos += 16
        end = at + self.size
        if body_len < 0 or pos + body_len > end:
            raise BadRecord(f"body length {body_len} does not fit the record")
        self.raw_body = bytes(data[pos:pos + body_len])
        pos += body_len
        if self.version == 1:
            (topic_len,) = take(">b", pos)
            pos += 1
        else:
            (topic_len,) = take(">h", pos)
            pos += 2
        if topic_len < 0 or pos + topic_len + 2 > end:
            raise BadRecord(f"topic length {topic_len} does not fit the record")
        self.topic = bytes(data[pos:pos + topic_len]).decode("utf-8", "surrogateescape")
        pos += topic_len
        (properties_len,) = take(">h", pos)
        pos += 2
        if properties_len < 0 or pos + properties_len != end:
            raise BadRecord(f"properties of {properties_len} bytes end at {pos + properties_len - at}, not {self.size}")
        self.properties = parse_properties(bytes(data[pos:end]).decode("utf-8", "surrogateescape"))
        return self

    @staticmethod
    def _host(data, pos, v6):
        width = 16 if v6 else 4
        address = bytes(data[pos:pos + width])
        if len(address) < width or len(data) < pos + width + 4:
            raise BadRecord("cut off")
        return (address, struct.unpack_from(">i", data, pos + width)[0]), pos + width + 4

    @property
    def body(self):
        """The body as the sender had it."""
        if not self.sys_flag & COMPRESSED:
            return self.raw_body
        kind = self.sys_flag >> 8 & 7
        if kind not in (0, 3):
            raise BadRecord(f"compression kind {kind} is not read here")
        return zlib.decompress(self.raw_body)

    @property
    def transaction(self):
        return self.sys_flag & TRANSACTION_BITS

    def in_queue(self):
        return self.transaction not in (PREPARED, ROLLBACK)

    def keys(self):
        out = []
        if self.properties.get("UNIQ_KEY"):
            out.append(self.properties["UNIQ_KEY"])
        out.extend(word for word in self.properties.get("KEYS", "").split(" ") if word)
        return out

    def tags_code(self):
        level = self.properties.get("DELAY", "")
        if self.topic == SCHEDULE_TOPIC and re.fullmatch(r"\d+", level) and int(level) > 0:
            return self.stored + DELAYS_MS[min(int(level), len(DELAYS_MS)) - 1]
        tags = self.properties.get("TAGS", "")
        return java_hash(tags) if tags else 0

    def place_in(self, topic):
        """(topic, queue id, queue offset) that a unit of `topic` must show; light queues have places of their own."""
        light = self.properties.get("INNER_MULTI_DISPATCH", "").split(",")
        if topic.startswith("%LMQ%") and topic in light:
            offsets = self.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
            return topic, 0, int(offsets[light.index(topic)])
        return self.topic, self.queue_id, self.queue_offset

    def fields(self):
        """All that a reader of the record sees, to compare two copies of it."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "phy"}

    def message_id(self):
        address, port = self.store_host
        return (address + struct.pack(">iq", port, self.phy)).hex().upper()


def parse_config(text):
    """fastjson's text as the broker writes it: strict JSON but for map keys that are bare integers."""
    out = []
    pos = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)', text, re.S):
        out.append(text[pos:match.start()])
        if match.group(2) is None:
            out.append(match.group(0))
        else:
            out.append(f'{match.group(1)}"{match.group(2)}"{match.group(3)}')
        pos = match.end()
    out.append(text[pos:])
    return json.loads("".join(out))


class Store:
    def __init__(self, root, commitlog_file_size, consumequeue_file_size, index_slots, index_units, ours=False):
        self.root = root
        self.log_file_size = commitlog_file_size
        self.queue_file_size = -(-consumequeue_file_size // UNIT_LEN) * UNIT_LEN
        self.index_slots = index_slots
        self.index_units = index_units
        self.ours = ours
        self.findings = []
        self.warnings = []
        self.records = []
        self.by_phy = {}
        self.log_min = 0
        self.log_end = 0
        self.crashed = os.path.exists(os.path.join(root, "abort"))
        self.queues = {}  # (topic, queue id) -> (min, max)
        self.index_entries = 0
        self.index_begin = None  # physical offset of the oldest record in the index
        self.config = {}

    def bad(self, invariant, text):
        if len(self.findings) < 200:
            self.findings.append(f"{invariant}: {text}")

    def warn(self, text):
        self.warnings.append(text)

    def check(self):
        self._config_files()
        self._commit_log()
        self._consume_queues()
        self._index()
        self._checkpoint()
        self._markers()
        self._offsets()
        return not self.findings

    def summary(self):
        return (f"{len(self.records)} records, {len(self.queues)} queues, "
                f"{sum(top - low for low, top in self.queues.values())} units, {self.index_entries} index entries, "
                f"log {self.log_min}..{self.log_end}" + (", stopped uncleanly" if self.crashed else ""))

    def bytes_of(self, record):
        """The record as it lies in the log."""
        start = record.phy - record.phy % self.log_file_size
        with open(os.path.join(self.root, "commitlog", f"{start:020}"), "rb") as file:
            file.seek(record.phy - start)
            return file.read(record.size)

    # ---- commit log

    def _mapped_files(self, folder, file_size, invariant):
        """(start, path) of each file of a folder in order; names and sizes checked."""
        out = []
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isdir(path):
                continue
            if not re.fullmatch(r"\d{20}", name):
                self.bad(invariant, f"{path}: not a name of 20 digits")
                continue
            size = os.path.getsize(path)
            if size == 0 and name == names[-1]:
                self.warn(f"{path}: empty last file")
                continue
            if size != file_size:
                self.bad(invariant, f"{path}: {size} bytes, expected {file_size}")
                continue
            start = int(name)
            if start % file_size:
                self.bad(invariant, f"{path}: not a multiple of {file_size}")
            if out and start != out[-1][0] + file_size:
                self.bad(invariant, f"{path}: expected {out[-1][0] + file_size:020} next")
            out.append((start, path))
        return out

    def _commit_log(self):
        files = self._mapped_files(os.path.join(self.root, "commitlog"), self.log_file_size, "I1")
        if files:
            self.log_min = self.log_end = files[0][0]
        stored_before = None
        next_offset = {}
        ended = None
        for start, path in files:
            data = read_file(path)
            if ended is not None:
                # Only files made ahead may follow the log's end, and nothing is in them.
                if any_byte_set(data):
                    self.bad("I3", f"{path}: holds bytes, but the log ended at {ended}")
                elif not self.crashed and not self.ours:
                    self.warn(f"{path}: an empty file after the log's end")
                continue
            at = 0
            while True:
                if at + 8 > len(data):
                    self.bad("I3", f"{path}: {len(data) - at} bytes left at {at}; at least 8 must remain for a blank")
                    ended = start + at
                    break
                size, magic = struct.unpack_from(">iI", data, at)
                if size == 0 and magic == 0:
                    ended = start + at
                    if any_byte_set(data[at:]):
                        self._tail(path, at, "zeros, then bytes that are no record")
                    break
                if magic == MAGIC_BLANK:
                    if size != len(data) - at or size < 8:
                        self.bad("I3", f"{path}: blank at {at} says {size}, {len(data) - at} are left")
                    if self.ours and any_byte_set(data[at + 8:]):
                        self.warn(f"{path}: bytes after the blank at {at}")
                    self.log_end = start + len(data)
                    break
                try:
                    record = Record.parse(data, at, start + at)
                except BadRecord as why:
                    self._tail(path, at, str(why))
                    ended = start + at
                    break
                self._record(record, next_offset)
                if stored_before is not None and record.stored < stored_before:
                    self.bad("I7", f"record {record.phy}: stored at {record.stored}, the one before at {stored_before}")
                stored_before = record.stored
                at += record.size
                self.log_end = start + at
            if ended is not None and start + at > self.log_end:
                self.log_end = start + at

    def _tail(self, path, at, why):
        """Bytes that are no record where the log ends: the trace of a kill, or damage."""
        if self.crashed:
            self.warn(f"{path}: torn tail at {at}: {why}")
        else:
            self.bad("I2", f"{path}: no record at {at}: {why}")

    def _record(self, record, next_offset):
        where = f"record {record.phy} ({record.topic!r} queue {record.queue_id})"
        if record.own_phy != record.phy:
            self.bad("I4", f"{where}: says it is at {record.own_phy}")
        crc = zlib.crc32(record.raw_body) & 0x7FFFFFFF
        if record.crc != crc:
            self.bad("I6", f"{where}: body CRC {record.crc}, computed {crc}")
        if record.sys_flag & ~SYS_FLAG_BITS:
            self.bad("I5", f"{where}: unknown bits in the flags {record.sys_flag:#x}")
        topic_len = len(record.topic.encode("utf-8", "surrogateescape"))
        if (record.version == 2) != (topic_len > 127):
            self.bad("I5", f"{where}: version {record.version} for a topic of {topic_len} bytes")
        if record.in_queue():
            key = (record.topic, record.queue_id)
            expected = next_offset.get(key)
            if expected is None and self.log_min == 0:
                expected = 0
            if expected is not None and record.queue_offset != expected:
                self.bad("I8", f"{where}: queue offset {record.queue_offset}, expected {expected}")
            next_offset[key] = record.queue_offset + 1
        self.records.append(record)
        self.by_phy[record.phy] = record

    # ---- consume queues

    def _consume_queues(self):
        folder = os.path.join(self.root, "consumequeue")
        has_ext = os.path.isdir(os.path.join(self.root, "consumequeue_ext"))
        seen = defaultdict(set)  # phy -> (topic, queue id)
        for topic in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            for queue in sorted(os.listdir(os.path.join(folder, topic))):
                if not queue.isdigit():
                    self.bad("I9", f"{folder}/{topic}/{queue}: not a queue id")
                    continue
                self._consume_queue(os.path.join(folder, topic, queue), topic, int(queue), seen, has_ext)
        counters = {}
        for record in self.records:
            if record.in_queue():
                counters[record.topic, record.queue_id] = record.queue_offset + 1
        for key, counter in counters.items():
            if self._topic_gone(key[0]):
                self.warn(f"{key[0]!r} queue {key[1]}: records of a topic that topics.json does not list")
                continue
            if self.crashed and self.queues.get(key, (0, 0))[1] < counter:
                self.warn(f"{key[0]!r} queue {key[1]}: ends at {self.queues.get(key, (0, 0))[1]}, the log at {counter}")
                continue
            if key not in self.queues:
                self.bad("I10", f"{key[0]!r} queue {key[1]}: no consume queue for {counter} records")
            elif self.queues[key][1] != counter:
                self.bad("I11", f"{key[0]!r} queue {key[1]}: ends at {self.queues[key][1]}, the log at {counter}")
        for record in self.records:
            key = (record.topic, record.queue_id)
            missing_is_known = key not in self.queues or self.crashed or self._topic_gone(record.topic)
            if record.in_queue() and key not in seen[record.phy] and not missing_is_known:
                place = f"{key[0]!r} queue {key[1]} offset {record.queue_offset}"
                self.bad("I10", f"record {record.phy} ({place}): no unit points to it")

    def _topic_gone(self, topic):
        topics = self.config.get("topics.json", {}).get("topicConfigTable")
        # Java leaves the emptied folder of a deleted topic behind.
        return topics is not None and topic not in topics and not any(name == topic for name, _ in self.queues)

    def _consume_queue(self, folder, topic, queue_id, seen, has_ext):
        name = f"{topic!r} queue {queue_id}"
        files = self._mapped_files(folder, self.queue_file_size, "I1")
        low = None
        top = files[0][0] // UNIT_LEN if files else 0
        last_phy = -1
        done = False
        for start, path in files:
            data = read_file(path)
            if done:
                if any_byte_set(data):
                    self.bad("I12", f"{path}: holds bytes after the queue's end")
                continue
            for at in range(0, len(data), UNIT_LEN):
                phy, size, tags = struct.unpack_from(">qiq", data, at)
                offset = (start + at) // UNIT_LEN
                if phy < 0 or size <= 0:
                    done = True
                    if self.ours and any_byte_set(data[at:]):
                        self.bad("I12", f"{path}: bytes after the end at {at}")
                    break
                if (phy, size, tags) == PRE_BLANK:
                    if low is not None:
                        self.bad("I9", f"{name}: filler unit {offset} after real ones")
                    top = offset + 1
                    continue
                top = offset + 1
                if phy < self.log_min:
                    continue
                if low is None:
                    low = offset
                if phy <= last_phy:
                    self.bad("I11", f"{name}: unit {offset} points to {phy}, the one before to {last_phy}")
                last_phy = phy
                record = self.by_phy.get(phy)
                if record is None:
                    if phy + size > self.log_end:
                        # Java leaves these behind after a crash until the next start; a clean stop may not.
                        self.bad("I18", f"{name}: unit {offset} points to {phy}, the log ends at {self.log_end}")
                    else:
                        self.bad("I9", f"{name}: unit {offset} points to {phy}, where no record starts")
                    continue
                want_topic, want_queue, want_offset = record.place_in(topic)
                for what, want, got in (
                    ("topic", want_topic, topic), ("queue", want_queue, queue_id),
                    ("queue offset", want_offset, offset), ("size", record.size, size),
                ):
                    if want != got:
                        self.bad("I9", f"{name}: unit {offset} has {what} {got}, its record {want}")
                if tags != record.tags_code() and not (has_ext and tags <= EXT_ADDRESS_MAX):
                    self.bad("I9", f"{name}: unit {offset} has tags code {tags}, expected {record.tags_code()}")
                if not record.in_queue():
                    self.bad("I9", f"{name}: unit {offset} points to a record that belongs in no queue")
                seen[phy].add((topic, queue_id))
        self.queues[topic, queue_id] = (top if low is None else low, top)

    # ---- index files

    def _index(self):
        folder = os.path.join(self.root, "index")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        want_size = INDEX_HEADER_LEN + INDEX_SLOT_LEN * self.index_slots + INDEX_UNIT_LEN * self.index_units
        reachable = set()
        oldest = None
        self.full_index_ends = []
        for name in names:
            path = os.path.join(folder, name)
            if not re.fullmatch(r"\d{17}", name):
                self.bad("I13", f"{path}: not a name of 17 digits")
                continue
            if os.path.getsize(path) != want_size:
                self.bad("I13", f"{path}: {os.path.getsize(path)} bytes, expected {want_size}")
                continue
            begin_phy = self._index_file(path, reachable)
            if oldest is None and begin_phy is not None:
                oldest = self.index_begin = begin_phy
        if oldest is None:
            if any(r.keys() for r in self.records) and not self.crashed:
                self.bad("I14", "records with keys, but no index file with entries")
            return
        missing = 0
        for record in self.records:
            if record.phy < oldest or record.transaction == ROLLBACK:
                continue
            for key in record.keys():
                if (key_hash(record.topic, key), record.phy) not in reachable:
                    missing += 1
                    if self.crashed:
                        continue
                    self.bad("I14", f"record {record.phy} ({record.topic!r}) is not found by its key {key!r}")
        if missing and self.crashed:
            self.warn(f"{missing} keys are not in the index yet")

    def _index_file(self, path, reachable):
        with open(path, "rb") as file:
            header = file.read(INDEX_HEADER_LEN)
            begin, end, begin_phy, end_phy, slots_used, count = struct.unpack(">qqqqii", header)
            slots = array.array("i", file.read(INDEX_SLOT_LEN * self.index_slots))
            if sys.byteorder == "little":
                slots.byteswap()
            if count < 1 or count > self.index_units:
                self.bad("I13", f"{path}: count {count} is not in 1..{self.index_units}")
                return None
            data = file.read(INDEX_UNIT_LEN * count)
        if count == 1:
            return None
        if count >= self.index_units:
            self.full_index_ends.append(end)
        self.index_entries += count - 1
        units = [struct.unpack_from(">iqii", data, INDEX_UNIT_LEN * n) for n in range(count)]
        last_phy = -1
        for number in range(1, count):
            key, phy, seconds, previous = units[number]
            if key < 0 or previous < 0 or previous >= number:
                self.bad("I13", f"{path}: unit {number} has hash {key}, previous {previous}")
                continue
            if phy < last_phy:
                self.bad("I13", f"{path}: unit {number} points to {phy}, the one before to {last_phy}")
            last_phy = phy
            if previous and units[previous][0] % self.index_slots != key % self.index_slots:
                self.bad("I13", f"{path}: unit {number} is chained to unit {previous} of another slot")
            record = self.by_phy.get(phy)
            if record is None:
                if phy >= self.log_min and not self.crashed:
                    self.bad("I13", f"{path}: unit {number} points to {phy}, where no record starts")
                continue
            if key not in {key_hash(record.topic, k) for k in record.keys()}:
                self.bad("I13", f"{path}: unit {number} has a hash that no key of record {phy} gives")
            want = min(max((record.stored - begin) // 1000, 0), 0x7FFFFFFF) if begin else 0
            if seconds != want:
                self.bad("I13", f"{path}: unit {number} is {seconds} s after the file's begin, expected {want}")
        used = 0
        for slot, number in enumerate(slots):
            if number == 0:
                continue
            used += 1
            if number < 0 or number >= count:
                self.bad("I13", f"{path}: slot {slot} says unit {number} of {count}")
                continue
            if units[number][0] % self.index_slots != slot:
                self.bad("I13", f"{path}: slot {slot} leads to a unit of slot {units[number][0] % self.index_slots}")
            steps = 0
            while number and steps <= count:
                reachable.add((units[number][0], units[number][1]))
                number = units[number][3]
                steps += 1
                if number >= count or number < 0:
                    break
        if slots_used != used:
            self.bad("I13", f"{path}: header says {slots_used} slots in use, {used} are")
        if begin_phy != units[1][1] or end_phy != units[count - 1][1]:
            self.bad("I13", f"{path}: header spans {begin_phy}..{end_phy}, units {units[1][1]}..{units[count - 1][1]}")
        for what, phy, time in (("begin", begin_phy, begin), ("end", end_phy, end)):
            record = self.by_phy.get(phy)
            if record is not None and record.stored != time:
                self.bad("I13", f"{path}: {what} time {time}, its record was stored at {record.stored}")
        return begin_phy

    # ---- small files

    def _checkpoint(self):
        path = os.path.join(self.root, "checkpoint")
        if not os.path.exists(path):
            self.bad("I15", f"{path}: missing")
            return
        data = read_file(path)
        if len(data) != CHECKPOINT_LEN:
            self.bad("I15", f"{path}: {len(data)} bytes, expected {CHECKPOINT_LEN}")
            return
        physic, logics, index, _, confirm = struct.unpack_from(">qqqqq", data)
        newest = max((r.stored for r in self.records), default=0)
        if any_byte_set(data[40:]):
            self.bad("I15", f"{path}: bytes after the five fields")
        if self.records and physic > newest:
            self.bad("I15", f"{path}: physic {physic} is after the newest record, {newest}")
        if self.records and logics > newest:
            self.bad("I15", f"{path}: logics {logics} is after the newest record, {newest}")
        if index and index not in getattr(self, "full_index_ends", []):
            self.bad("I15", f"{path}: index {index} is not the end time of a full index file")
        if confirm > self.log_end:
            self.bad("I15", f"{path}: confirm offset {confirm} is beyond the log's end {self.log_end}")

    def _markers(self):
        path = os.path.join(self.root, "lock")
        if not os.path.exists(path) or read_file(path) != b"lock":
            self.bad("1.4", f"{path}: must hold the four bytes 'lock'")
        for folder, _, names in os.walk(self.root):
            # What Kerolox was killed over, a Java broker that comes after it and stops cleanly leaves where it is.
            known = self.crashed or not self.ours and os.path.basename(folder) == "kerolox"
            for name in names:
                if name.endswith(".tmp"):
                    # And what a Java broker was killed over, of a table that Kerolox does not have, Kerolox leaves.
                    of_java = name == "transactionMetrics.tmp"
                    (self.warn if known or of_java else lambda t: self.bad("1.5", t))(f"{folder}/{name}: left behind")

    def _config_files(self):
        folder = os.path.join(self.root, "config")
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            path = os.path.join(folder, name)
            if not re.search(r"\.json(\.bak)?$", name) or os.path.getsize(path) == 0:
                continue
            try:
                with open(path, encoding="utf-8") as file:
                    self.config[name] = parse_config(file.read())
            except ValueError as why:
                self.bad("1.5", f"{path}: {why}")
        for key, topic in self.config.get("topics.json", {}).get("topicConfigTable", {}).items():
            where = f"topics.json: {key!r}"
            if topic.get("topicName") != key:
                self.bad("1.6", f"{where} is named {topic.get('topicName')!r}")
            for field in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag"):
                if not isinstance(topic.get(field), int) or topic[field] < 0:
                    self.bad("1.6", f"{where} has {field} {topic.get(field)!r}")
            if topic.get("topicFilterType") not in ("SINGLE_TAG", "MULTI_TAG"):
                self.bad("1.6", f"{where} has filter type {topic.get('topicFilterType')!r}")
            if not isinstance(topic.get("order"), bool):
                self.bad("1.6", f"{where} has order {topic.get('order')!r}")
        for key, group in self.config.get("subscriptionGroup.json", {}).get("subscriptionGroupTable", {}).items():
            if group.get("groupName") != key:
                self.bad("1.6", f"subscriptionGroup.json: {key!r} is named {group.get('groupName')!r}")
            for field in ("retryQueueNums", "retryMaxTimes"):
                if not isinstance(group.get(field), int):
                    self.bad("1.6", f"subscriptionGroup.json: {key!r} has {field} {group.get(field)!r}")

    def _offsets(self):
        for name, table in self.config.get("consumerOffset.json", {}).get("offsetTable", {}).items():
            topic, at, group = name.partition("@")
            if not at or not topic or not group:
                self.bad("1.6", f"consumerOffset.json: {name!r} is no topic@group")
            for queue, offset in table.items():
                top = self.queues.get((topic, int(queue)), (0, 0))[1]
                if offset < 0 or offset > top:
                    self.warn(f"I16: {name} queue {queue}: offset {offset}, the queue ends at {top}")
        for level, offset in self.config.get("delayOffset.json", {}).get("offsetTable", {}).items():
            top = self.queues.get((SCHEDULE_TOPIC, int(level) - 1), (0, 0))[1]
            if not 1 <= int(level) <= len(DELAYS_MS) or not 0 <= offset <= top:
                self.bad("1.6", f"delayOffset.json: level {level} is at {offset}, its queue ends at {top}")
        for topic, queue in self.queues:
            known = self.config.get("topics.json", {}).get("topicConfigTable")
            if known is not None and topic not in known:
                self.warn(f"consume queue of {topic!r}, a topic that topics.json does not list")


def read_file(path):
    with open(path, "rb") as file:
        return file.read()


def any_byte_set(data):
    return data.count(0) != len(data)


def size_of(text):
    match = re.fullmatch(r"(\d+)\s*(B|KiB|MiB|GiB)?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 4096 or 16MiB")
    return int(match.group(1)) * {None: 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[match.group(2)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--commitlog-file-size", type=size_of, default=1 << 30, metavar="SIZE")
    parser.add_argument("--consumequeue-file-size", type=size_of, default=6_000_000, metavar="SIZE")
    parser.add_argument("--index-slots", type=int, default=5_000_000, metavar="N")
    parser.add_argument("--index-units", type=int, default=20_000_000, metavar="N")
    parser.add_argument("--ours", action="store_true", help="also what only Kerolox promises (I12)")
    parser.add_argument("--dump", action="store_true", help="print each record as a JSON line")
    args = parser.parse_args()
    if not os.path.isdir(args.folder):
        parser.error(f"{args.folder} is no folder")
    store = Store(args.folder, args.commitlog_file_size, args.consumequeue_file_size, args.index_slots,
                  args.index_units, args.ours)
    good = store.check()
    if args.dump:
        for record in store.records:
            print(json.dumps({
                "phy": record.phy, "topic": record.topic, "queue": record.queue_id, "offset": record.queue_offset,
                "body": record.body.decode("utf-8", "replace")[:200], "len": len(record.body),
                "properties": record.properties, "reconsume_times": record.reconsume_times,
            }, ensure_ascii=False))
    for warning in store.warnings:
        print(f"note: {warning}")
    for finding in store.findings:
        print(f"BAD {finding}")
    print(f"{'consistent' if good else 'INCONSISTENT'}: {store.summary()}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
