"""One worker per device: started, started again when it dies, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foxqueue.config import Config
from foxqueue.errors import FoxqueueError
from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.processes import ProcessId, pid_namespace
from workers.keeper import Backoff, process_of, say
from workers.signals import StopSignals

# -P: a package named workers in the directory where the user types `foxqueue up` must not be taken for ours.
WORKER_COMMAND = (sys.executable, "-P", "-m", "workers")
REFUSED = 3  # exit code of a worker that must not be started again
DRAIN_S = 80.0  # a worker waits 60 s for its job, then needs some to kill it and to give it back
KILLED_S = 10.0
_LOOK_S = 0.1


@dataclass
class Slot:
    """The place of one worker.

    Attributes:
        device: what it serves.
        process: the worker; None while there is none.
        refused: it must not be started again.
    """

    device: Device
    process: ProcessId | None = None
    refused: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _began: float = 0.0
    _due: float = 0.0
    _backoff: Backoff = field(default_factory=Backoff)

    def tend(self, command: Sequence[str], environ: Mapping[str, str], known: ProcessId | None) -> None:
        """Start the worker if it is time to, or see that it ended.

        Args:
            command: of the worker, whole.
            environ: its environment.
            known: a worker of the same home that serves the device already, left by an earlier `up`.
        """
        now = time.monotonic()
        if self.process is not None:
            self._look(now)
        if self.process is None and not self.refused and now >= self._due:
            self._start(command, environ, known)

    def alive(self) -> bool:
        """Whether its worker runs."""
        if self._child is not None:
            return self._child.poll() is None
        return self.process is not None and self.process.alive()

    def send(self, number: signal.Signals) -> None:
        """Signal the worker, if it runs."""
        if self._child is not None:
            self._child.send_signal(number)
        elif self.process is not None:
            self.process.send(number)

    def _look(self, now: float) -> None:
        if self.alive():
            return
        status = None if self._child is None else self._child.returncode
        self.process = self._child = None
        if status == REFUSED:
            self.refused = True
            say(f"the worker of {self.device.ref} refused, for the reason it gave above; it is not started again")
            return
        self._due = now + self._backoff.after(now - self._began)
        say(f"the worker of {self.device.ref} {_ending(status)}; starting it again")

    def _start(self, command: Sequence[str], environ: Mapping[str, str], known: ProcessId | None) -> None:
        self._began = time.monotonic()
        if known is not None:
            self.process = known
            say(f"{self.device.ref} is served by a worker that an earlier foxqueue up left (pid {known.pid})")
            return
        try:
            # A session of its own: Ctrl-C at the terminal is for `up` alone, which asks the workers to drain.
            self._child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._due = self._began + max(1.0, self._backoff.after(0.0))
            say(f"the worker of {self.device.ref} cannot be started: {error}; trying again")
            return
        self.process = ProcessId.of(self._child.pid)


class Slots:
    """The workers of one `up`.

    Args:
        config: home and namespace they serve.
        url: of the server, with everything needed to connect but the password.
        devices: one worker each.
        flags: ``--simulate``, ``--cpu``, as `up` was given them.
        command: in place of ``python -m workers``.
    """

    def __init__(
        self,
        config: Config,
        url: str,
        devices: Sequence[Device],
        flags: Sequence[str] = (),
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._config = config
        self._command = [*command]
        self._flags = [*flags]
        self._environ = worker_environment(config, url, os.environ)
        self.slots = [Slot(device) for device in devices]

    def tend(self) -> None:
        """Look after each worker once."""
        for slot in self.slots:
            known = left_behind(self._config, slot.device) if slot.process is None else None
            slot.tend([*self._command, "--gpu", slot.device.uuid, *self._flags], self._environ, known)

    def wanted(self) -> list[Slot]:
        """Those that did not refuse."""
        return [slot for slot in self.slots if not slot.refused]

    def end(self, signals: StopSignals, drain_s: float = DRAIN_S) -> None:
        """SIGTERM to all, and wait for them.

        Args:
            signals: the first is what ends us; the second is a second SIGTERM, the third a SIGKILL to the workers.
            drain_s: seconds after which they are killed in any case.
        """
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + drain_s
        urged = False
        while any(slot.alive() for slot in self.slots):
            if signals.count > 2 or time.monotonic() > deadline:
                self._send(signal.SIGKILL)
                if time.monotonic() > deadline + KILLED_S:
                    say("a worker does not end, not even by SIGKILL: the kernel holds it")
                    return
            elif signals.count == 2 and not urged:
                urged = True
                self._send(signal.SIGTERM)
            signals.wait(_LOOK_S)

    def _send(self, number: signal.Signals) -> None:
        for slot in self.slots:
            if slot.alive():
                slot.send(number)


def worker_environment(config: Config, url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker finds in its environment: home, namespace and server spelt out, whatever they came from."""
    found = {name: value for name, value in environ.items() if not name.startswith("FOXQUEUE_PASSWORD")}
    if config.url and config.password is not None:
        found["FOXQUEUE_PASSWORD"] = config.password
    return found | {
        "FOXQUEUE_HOME": str(config.home),
        "FOXQUEUE_NAMESPACE": config.namespace,
        "FOXQUEUE_URL": url,
    }


def left_behind(config: Config, device: Device) -> ProcessId | None:
    """The living worker of this home and namespace that holds the device's lock, if there is one."""
    try:
        places = lock_places(device.kind, config.machine_dir, os.environ)
    except FoxqueueError:
        return None  # the worker finds out and says why
    return _ours(config, device.uuid, places)


def left_workers(config: Config) -> list[ProcessId]:
    """All living workers of this home and namespace on this machine, by what their locks say."""
    found: dict[ProcessId, None] = {}
    for kind in ("nvml", "simulated"):
        places: list[Path] = []
        with suppress(FoxqueueError):
            places = lock_places(kind, config.machine_dir, os.environ)
        for name in sorted({path.stem for place in places for path in _files(place)}):
            process = _ours(config, name, places)
            if process:
                found[process] = None
    return list(found)


def _files(place: Path) -> list[Path]:
    with suppress(OSError):
        return list(place.glob("*.worker"))
    return []


def _ours(config: Config, device: str, places: Sequence[Path]) -> ProcessId | None:
    record: dict[str, Any] | None = DeviceLock(device, "worker", places).read()
    if record is None or record.get("home") != str(config.home) or record.get("namespace") != config.namespace:
        return None
    process = process_of(record)
    if process is None or process.pid_ns != pid_namespace() or not process.alive():
        return None
    return process


def _ending(status: int | None) -> str:
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
