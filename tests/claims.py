"""Custom workers in tests: claims of this process, and processes that claim."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from foxqueue import Client
from foxqueue.claiming import Claim
from foxqueue.gpu import Device
from foxqueue.places import home_id
from foxqueue.survey import discover

SIMULATE = "2x24G"


def claim(fox: Client, timeout: float | None = 20, device: str = "sim:0") -> Claim:
    """A claim for a simulated device."""
    return fox.claim(device, simulate=SIMULATE, timeout=timeout)


def device_of(fox: Client, index: int = 0) -> Device:
    """One of those devices."""
    return discover(SIMULATE, 0, home_id(fox.config), socket.gethostname(), {})[index]


class Custom:
    """A process that claims one job.

    Args:
        fox: whose queue and home.
        body: Python that runs in the block: ``fox``, ``run``, ``os``, ``subprocess``, ``time`` and ``say`` are there.
        device: which it claims.
        before: Python that runs before the block.
    """

    def __init__(self, fox: Client, body: str, device: str = "sim:0", before: str = "") -> None:
        lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
        code = f"""
import os, subprocess, sys, time
from foxqueue import Client, LeaseLost
def say(*words): print(*words, flush=True)
fox = Client({fox.broker.connection.url!r}, {fox.config.namespace!r}, {str(fox.config.home)!r})
{before}
with fox.claim({device!r}, simulate={SIMULATE!r}, timeout=60) as run:
    say("got", run.number)
{lines}
say(time.monotonic())
"""
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={name: value for name, value in os.environ.items() if not name.startswith("FOXQUEUE_")},
        )

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        """Answer its ``input()``."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def __enter__(self) -> Custom:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()
