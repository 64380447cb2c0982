"""Child processes that cannot outlive the run: all are known here, and a guard process ends them if the runner dies."""

import os
import subprocess
import sys
import threading

# Reentrant, because a signal handler may end the children while its thread is starting one.
_lock = threading.RLock()
_guard = None
_children = set()
_ending = False


def start(command, **options):
    """Popen in a session of its own, so that a Ctrl-C at the terminal reaches the runner only."""
    global _guard
    with _lock:
        if _guard is None:
            path = os.path.join(os.path.dirname(__file__), "guard.py")
            _guard = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, text=True, start_new_session=True)
    with _lock:
        if _ending:
            raise RuntimeError("the run is ending")
        child = subprocess.Popen(command, start_new_session=True, **options)
        _children.add(child)
        _tell(f"+{child.pid}\n")
    return child


def ended(child):
    """To be called once `child` was waited for."""
    with _lock:
        if child in _children:
            _children.discard(child)
            _tell(f"-{child.pid}\n")


def kill(child):
    if child.poll() is None:
        child.kill()
    child.wait()
    ended(child)


def end_all():
    global _ending
    _ending = True
    for child in list(_children):
        kill(child)
    if _guard is not None:
        _guard.stdin.close()
        _guard.wait()


def _tell(line):
    try:
        _guard.stdin.write(line)
        _guard.stdin.flush()
    except OSError:
        pass
