"""A check of the suite that is no client scenario, and what the files that hold some share."""

import os

from store_reader import Store

from .agent import Failed, Skipped

TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Check:
    """`deed(folder, binary)` raises what is wrong, else gives a note; the folder is new and its own."""

    def __init__(self, who, what, deed, seconds=180):
        self.who = who
        self.what = what
        self.deed = deed
        self.seconds = seconds


def append_modes():
    """The values of `store.append` that every check runs with; the Rust tests read the same file."""
    with open(os.path.join(TESTS, "append-modes")) as file:
        return file.read().split()


def read_store(folder, sizes, ours=False):
    """The store by the independent reader; raises what does not agree in it."""
    store = Store(folder, sizes.commitlog_file, sizes.consumequeue_file, sizes.index_slots, sizes.index_units, ours)
    if not store.check():
        raise Failed(f"{len(store.findings)} findings in {folder}: " + "; ".join(store.findings[:3]))
    return store


def expect(what, got, want):
    if got != want:
        raise Failed(f"{what}: {got!r}, expected {want!r}")


def need_root():
    if os.geteuid() != 0:
        raise Skipped("needs root")
