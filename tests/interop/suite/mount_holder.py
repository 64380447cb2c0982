"""Mounts an image file and unmounts it when standard input ends, however the runner ends; thaws it before, if need be.

    mount_holder.py IMAGE FOLDER

Says "mounted"; then takes lines: "freeze" and "thaw", each answered with the same word.
"""

import signal
import subprocess
import sys
import time


def main():
    image, folder = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    frozen = False
    try:
        print("mounted", flush=True)
        for line in sys.stdin:
            frozen = line.strip() == "freeze"
            subprocess.run(["fsfreeze", "--freeze" if frozen else "--unfreeze", folder], check=True)
            print(line.strip(), flush=True)
    finally:
        if frozen:
            subprocess.run(["fsfreeze", "--unfreeze", folder])
        for _ in range(50):
            if subprocess.run(["umount", folder], stderr=subprocess.DEVNULL).returncode == 0:
                return
            # A node that was killed may still have files there.
            time.sleep(0.1)
        subprocess.run(["umount", "--lazy", folder])


main()
