"""A device that fails under a running node: real write errors, as a thinly provisioned one gives when it runs out.

The file system lies in a sparse image on a tmpfs without room: what it writes to blocks that the image has not is an EIO of
the loop device, which the node hears from its sync.
"""

import os
import subprocess

from . import wire
from .agent import Failed
from .both_ways import ONE_INDEX
from .checks import Check, append_modes, expect, need_root, read_store
from .disks import LoopDisk
from .frozen import TOPIC, Sends, all_there, mends
from .nodes import Kerolox


class SmallTmpfs:
    def __init__(self, folder, megabytes):
        need_root()
        self.folder = os.path.join(folder, "tmpfs")
        os.makedirs(self.folder)
        self.size = f"size={megabytes}m"

    def __enter__(self):
        subprocess.run(["mount", "-t", "tmpfs", "-o", self.size, "tmpfs", self.folder], check=True)
        return self

    def fill(self):
        """Leaves no page."""
        try:
            with open(os.path.join(self.folder, "filler"), "wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
        except OSError:
            pass

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def free(self):
        os.remove(os.path.join(self.folder, "filler"))


def failing(folder, binary, append):
    with SmallTmpfs(folder, 96) as room:
        disk = LoopDisk(folder, 256, room.folder)
        acked = {}

        def keep(sends):
            answers = sends.finish()
            acked.update((n, int(offset)) for n, (code, _, offset, _) in answers.items() if code == wire.OK)
            return answers

        def start():
            # Zeroing ahead would meet the error first, and appends would go on into what is zeroed.
            node = Kerolox(folder, "sync", binary, ONE_INDEX, os.path.join(disk.mount, "store"), append,
                           store__zero_ahead="off")
            node.start()
            return node

        with disk:
            disk.write_by_pages()
            node = start()
            wire.create_topic(node, TOPIC, 1)
            expect("sends before", {code for code, *_ in keep(Sends(node, 0, 20)).values()}, {wire.OK})
            room.fill()
            number = 100
            while (answer := keep(Sends(node, number, 1))[number])[0] == wire.OK:
                number += 1
                if number > 5000:
                    raise Failed("5,000 messages were stored on a device without room")
            expect("the send that met the error", answer[0], wire.SERVICE_NOT_AVAILABLE)
            for number in range(number + 1, number + 4):
                answer = keep(Sends(node, number, 1))[number]
                expect("a send after it", (answer[0], "restart" in answer[1]), (wire.SERVICE_NOT_AVAILABLE, True))
            expect("messages that are still read", len(wire.pull_all(node, TOPIC, 0)), len(acked))
            all_there(node, acked)
            node.check_alive()
            node.kill()
        room.free()
        disk.repair()
        with disk:
            node = start()
            all_there(node, acked)
            mended = mends(node, keep)
            all_there(node, acked)
            node.stop()
            store = read_store(node.store, ONE_INDEX)
    return f"{len(acked)} acknowledged, sends again {mended:.1f} s after the restart; {store.summary()}"


CHECKS = [
    Check(f"failing-disk/{mode}", "refuses, reads, recovers", lambda f, b, mode=mode: failing(f, b, mode))
    for mode in append_modes()
]
