"""What a job of the chaos does: it holds its device as long as one of its processes lives, and stamps begin and end.

Arguments: kind of job, directory of the stamps, seconds that it lasts. It starts in ten milliseconds, so it uses the
standard library only.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time

KIND, FOLDER, LASTS_S = sys.argv[1:]
DEVICE, FENCE, NUMBER = (os.environ[f"FOXQUEUE_{name}"] for name in ("GPUS", "FENCE", "JOB_ID"))
LOUD_BYTES = 300_000


def stamp(what: str, more: str = "") -> None:
    """One line in one write: lines of several processes do not mix."""
    line = f"{what} {DEVICE} {FENCE} {NUMBER} {time.monotonic_ns()} {more}\n"
    file = os.open(f"{FOLDER}/stamps", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def hold_device() -> None:
    """Lock a file of the device. All processes of the run share the lock: the kernel drops it with the last of them."""
    held = os.open(f"{FOLDER}/{DEVICE}.held", os.O_RDWR | os.O_CREAT, 0o600)
    os.set_inheritable(held, True)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stamp("overlap", "beside " + os.read(held, 100).decode())
        return
    os.ftruncate(held, 0)
    os.write(held, f"job={NUMBER},fence={FENCE}".encode())


def leave_a_daemon(deaf: bool) -> None:
    """Fork twice with a session in between, so that parent, group and session of what stays are others."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    if deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)
    os._exit(0)


def main() -> int:
    if KIND == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hold_device()
    stamp("begin")
    if KIND in ("daemon", "deaf"):
        leave_a_daemon(deaf=KIND == "deaf")
    if KIND == "loud":
        for _ in range(LOUD_BYTES // 1000):
            os.write(1, b"x" * 999 + b"\n")
    time.sleep(float(LASTS_S))
    failed = KIND == "fails" or (KIND == "flaky" and os.environ["FOXQUEUE_ATTEMPT"] == "1")
    stamp("end")
    return 3 if failed else 0


sys.exit(main())
