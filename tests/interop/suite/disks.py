"""File systems of a check's own, on loop devices: to be frozen, or to fail. They need root."""

import os
import subprocess
import sys
import time

from . import tools
from .agent import Failed, Skipped
from .checks import need_root


PAGE = 4096


class LoopDisk:
    """An ext4 file system in an image file, mounted while this is open."""

    def __init__(self, folder, megabytes, image_folder=None):
        need_root()
        tools.need(("mkfs.ext4", "e2fsprogs"), ("fsfreeze", "util-linux"), ("mount", "mount"), ("losetup", "mount"))
        self.image = os.path.join(image_folder or folder, "image")
        # Checks that make a mount namespace know other checks' disks by this name.
        self.mount = os.path.join(folder, "suite-disk")
        os.makedirs(self.mount)
        with open(self.image, "wb") as file:
            file.truncate(megabytes << 20)
        # All that the file system needs is written now, so that an image on a full disk fails in the data.
        tools.run(["mkfs.ext4", "-q", "-F", "-b", str(PAGE), "-E", "lazy_itable_init=0,lazy_journal_init=0", "-J", "size=8",
                   self.image])
        self.holder = None

    def repair(self):
        """What the operator of a failed disk does before its next mount; not while this is open."""
        # Unmounted here is not yet gone: the same file system must not be checked, or mounted anew, while it lives.
        deadline = time.monotonic() + 60
        while loops := subprocess.run(["losetup", "--associated", self.image], stdout=subprocess.PIPE, text=True).stdout:
            if time.monotonic() > deadline:
                raise Failed(f"{self.image} is still in use: {loops}")
            time.sleep(0.02)
        done = subprocess.run(["e2fsck", "-f", "-y", self.image], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode not in (0, 1):
            raise Failed(f"e2fsck ended with {done.returncode}: {done.stdout[-500:]}")

    def __enter__(self):
        holder = os.path.join(os.path.dirname(__file__), "mount_holder.py")
        # No child of the run's: those are killed in the end, and this one must unmount.
        self.holder = subprocess.Popen([sys.executable, holder, self.image, self.mount], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, start_new_session=True)
        if self.holder.stdout.readline().strip() != "mounted":
            raise Skipped("this machine lets root mount no image file")
        return self

    def write_by_pages(self):
        """From now on each request is for one page of the image, so that it is written as a whole or fails.

        Linux 6.18's loop device says of a write that its image takes only in part that all of it was written: a disk that
        lies, on which nothing can keep a promise.
        """
        (loop,) = subprocess.run(["losetup", "--noheadings", "--output", "NAME", "--associated", self.image],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.split()
        try:
            with open(f"/sys/block/{os.path.basename(loop)}/queue/max_sectors_kb", "w", encoding="ascii") as file:
                file.write(str(PAGE // 1024))
        except OSError as why:
            raise Skipped(f"this machine lets root bound no requests: {why}") from why

    def freeze(self):
        self._tell("freeze")

    def thaw(self):
        self._tell("thaw")

    def _tell(self, word):
        self.holder.stdin.write(word + "\n")
        self.holder.stdin.flush()
        self._expect(word)

    def _expect(self, word):
        if self.holder.stdout.readline().strip() != word:
            raise Failed(f"{self.mount}: no {word}")

    def __exit__(self, *_):
        self.holder.stdin.close()
        self.holder.wait()
