"""Ends what the runner started if the runner itself is killed: holds its pids, and acts when standard input ends.

Lines: `+PID` a process was started, `-PID` it ended. A pid is only signalled while its start time is the one it had.
"""

import os
import signal
import sys


def start_time(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except OSError:
        return None


def main():
    # A Ctrl-C at the terminal is for the runner, which then closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    held = {}
    for line in sys.stdin:
        pid = int(line[1:])
        if line[0] == "+":
            held[pid] = start_time(pid)
        else:
            held.pop(pid, None)
    for pid, since in held.items():
        if since is not None and start_time(pid) == since:
            os.kill(pid, signal.SIGKILL)


main()
