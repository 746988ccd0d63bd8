"""The worker's side of a run: its directory, its exit record, and the runner that carries it out.

Messages of the worker: ``start`` (once; the fields of :class:`workers.launch.Order`, the device's lock descriptors
attached, in front of them those of ``shared``, if it has that), ``feed`` {until}, ``kill`` {why, grace_s} and
``signal`` {signum}. Of the runner: ``ready`` {pid}, ``started`` {pid, process}, ``fed`` {until} for each feed it took,
``exited`` {record}. The exit record: job, born, fence, exit_code and signal of the main process, core, why (cancel,
shutdown, paused, lease_lost, stale, timeout, worker_lost or takeover: what we ended it for), killed (SIGKILL was
needed for some process), error (it could not be started: what and how to cure it), not_found (there is no such
command), no_room (because the disk is full), started_ms and ended_ms (epoch), max_rss_kib, user_s, system_s,
output_bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from foxqueue.processes import ProcessId
from workers.channel import Channel, Message, pair
from workers.launch import OUTPUT_NAME
from workers.record import RECORD_BYTES, RECORD_NAME

_SECRETS: Final = ("FOXQUEUE_PASSWORD", "FOXQUEUE_URL")  # a runner knows no Redis


class RunnerHandle:
    """A runner as its worker sees it. Its death makes the channel readable, and then :attr:`gone` is true.

    Attributes:
        channel: to the runner; readable when there is something to hear, its end included.
        process: the child.
        identity: who it is, for records; None when it died at once.
    """

    def __init__(self, channel: Channel, process: subprocess.Popen[bytes]) -> None:
        self.channel = channel
        self.process = process
        self.identity = ProcessId.of(process.pid)

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    @property
    def gone(self) -> bool:
        """Whether it is dead or has closed its end. Messages it sent before can still be heard: drain them."""
        return self.channel.eof or self.process.poll() is not None

    def fileno(self) -> int:
        """The channel's descriptor, for a selector."""
        return self.channel.fileno()

    def hear(self) -> list[Message]:
        """All messages that are there, without waiting."""
        return self.channel.drain()

    def start(self, order: dict[str, Any], lock_fds: Sequence[int] = ()) -> None:
        """Tell it to start the job.

        Args:
            order: the fields of :class:`workers.launch.Order`.
            lock_fds: descriptors of the device's ``.gpu`` lock; the runner shares them.

        Raises:
            OSError: it is dead or does not read.
        """
        self.channel.send({"op": "start", **order}, lock_fds)

    def feed(self, until: float) -> None:
        """Let the job live until ``until``, in seconds of the order's clock.

        Raises:
            OSError: it is dead or does not read.
        """
        self.channel.send({"op": "feed", "until": until}, timeout_s=0.5)

    def kill(self, why: str, grace_s: float) -> None:
        """End the job: TERM, and KILL after ``grace_s`` seconds.

        ``why`` is cancel, shutdown, paused, lease_lost or stale.

        Raises:
            OSError: it is dead or does not read.
        """
        self.channel.send({"op": "kill", "why": why, "grace_s": grace_s})

    def signal(self, signum: int) -> None:
        """Pass a signal on to the command.

        Raises:
            OSError: it is dead or does not read.
        """
        self.channel.send({"op": "signal", "signum": signum}, timeout_s=0.5)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send a runner home that stands by or has finished, and reap it.

        One that runs a job goes on until nobody has fed it for too long; it is left alone here.
        """
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)


def spawn_runner(*, terminal: bool = False) -> RunnerHandle:
    """Start a runner that stands by.

    It leads a session of its own, so neither a Ctrl-C at the worker's terminal nor a signal to the worker's group
    reaches it.

    Args:
        terminal: what it is to start shall have this process's terminal: it leads a process group only.

    Raises:
        OSError: no process could be started.
    """
    channel, theirs = pair()
    how = ["terminal"] if terminal else []
    try:
        with theirs:
            process = subprocess.Popen(
                # -P: a file in the current directory must not stand in for a module of ours.
                [sys.executable, "-P", "-m", "workers.runner", str(theirs.fileno()), *how],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=not terminal,
                process_group=0 if terminal else None,
                env={name: value for name, value in os.environ.items() if name not in _SECRETS},
            )
    except OSError:
        channel.close()
        raise
    return RunnerHandle(channel, process)


def output_path(run_dir: Path) -> Path:
    """The file that takes the run's standard output and standard error."""
    return run_dir / OUTPUT_NAME


def read_exit_record(run_dir: Path, fence: int) -> dict[str, Any] | None:
    """The exit record of the run with this fence; None when there is none, or it is another run's or broken."""
    try:
        with (run_dir / RECORD_NAME).open("rb") as file:
            record = json.loads(file.read(4 * RECORD_BYTES))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("fence") != fence:
        return None
    return record
