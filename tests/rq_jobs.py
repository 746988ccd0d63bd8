"""Jobs for workers of RQ. They say what they found and did in files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SEEN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "FOXQUEUE_GPUS", "FOXQUEUE_FENCE", "FOXQUEUE_RUN")


def see(out: str) -> int:
    """Write down what the environment says."""
    Path(out).write_text(json.dumps({name: os.environ.get(name) for name in SEEN}))
    return 42


def wait_for(flag: str, started: str) -> None:
    """Say that it has begun, then go on until the flag is there."""
    Path(started).write_text(str(os.getpid()))
    while not Path(flag).exists():
        time.sleep(0.01)


def fail() -> None:
    """Raise."""
    raise ValueError("no good")


def leave_behind(started: str) -> None:
    """End at once, but leave a process in a session of its own, with an empty environment."""
    code = f"import os, time; open({started!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True, env={})
    while not Path(started).exists():
        time.sleep(0.01)


def log_use(path: str, seconds: float) -> None:
    """Append when it had its device, by CLOCK_MONOTONIC."""
    began = time.monotonic()
    time.sleep(seconds)
    with Path(path).open("a") as file:
        file.write(json.dumps([os.environ["FOXQUEUE_GPUS"], began, time.monotonic()]) + "\n")


def with_child(flag: str, started: str) -> None:
    """A child in a session of its own, which has the environment, and go on until the flag is there."""
    code = f"import os, time; open({started!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    subprocess.Popen([sys.executable, "-S", "-c", code], start_new_session=True)
    while not Path(flag).exists():
        time.sleep(0.01)
