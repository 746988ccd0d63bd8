"""A worker of a stack whose runs lie on a small file system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stack import Stack
from wait import until

from foxqueue.config import machine_id


class Small:
    """A worker whose runs lie on a small file system that it alone sees.

    Args:
        stack: with a server.
        options: of the file system.
        before: Python that runs first in the worker.
        kind: of the file system.
    """

    def __init__(self, stack: Stack, options: str = "size=20m", before: str = "", kind: str = "tmpfs") -> None:
        private = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        if subprocess.run([*private, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode:
            pytest.skip("no file system can be mounted here, not even in a namespace of its own")
        place = stack.home / machine_id() / "jobs"
        place.mkdir(mode=0o700)
        shell = 'mount -t "$1" -o "$2" none "$0" && shift 2 && exec "$@"'
        code = f"{before}\nimport sys\nfrom workers.__main__ import main\nsys.exit(main(sys.argv[1:]))"
        worker = [sys.executable, "-P", "-c", code, "--gpu", "sim:0", "--simulate", "1x24G"]
        self.stack = stack
        self.process = stack._start(
            [*private, "sh", "-c", shell, str(place), kind, options, *worker], "worker", stack.environ
        )
        until(stack.devices, 20, what=f"the worker: {stack.log('worker')}")
        self.place = Path(f"/proc/{self.process.pid}/root{place}")

    @property
    def filler(self) -> Path:
        return self.place / "filler"

    def leave(self, free: int) -> None:
        """Fill it but for so many bytes."""
        found = os.statvfs(self.place)
        self.filler.write_bytes(bytes(found.f_bavail * found.f_frsize - free))

    def device(self) -> dict[str, object]:
        return next(iter(self.stack.devices().values()))
