"""One worker per device: started, started again when it dies, and ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foxqueue.config import Config, own_password, password_file
from foxqueue.gpu import Device
from foxqueue.processes import ProcessId
from workers.keeper import Backoff, say
from workers.leftovers import DRAIN_S, KILLED_S, end_runs, holder_of, left_behind, lone_runs
from workers.signals import StopSignals
from workers.strays import Strays

# -P: a package named workers in the directory where the user types `foxqueue up` must not be taken for ours.
WORKER_COMMAND = (sys.executable, "-P", "-m", "workers")
REFUSED = 3  # exit code of a worker that found another one on its device
AGAIN_S = 10.0  # between looks at a device that another worker serves
URGED_S = 0.5  # between two calls to hurry
_LOOK_S = 0.1


@dataclass
class Slot:
    """The place of one worker.

    Attributes:
        device: what it serves.
        process: the worker; None while there is none.
        refused: the last one found another worker on the device.
        served: any of them came further than that.
    """

    device: Device
    process: ProcessId | None = None
    refused: bool = False
    served: bool = False
    _child: subprocess.Popen[bytes] | None = None
    _began: float = 0.0
    _due: float = 0.0
    _told: bool = False
    _backoff: Backoff = field(default_factory=Backoff)

    @property
    def child(self) -> int | None:
        """Number of the worker, if it is our child; its status is still to be taken."""
        return None if self._child is None else self._child.pid

    def alive(self) -> bool:
        """Whether its worker runs."""
        if self._child is not None:
            return self._child.poll() is None
        return self.process is not None and self.process.alive()

    def send(self, number: signal.Signals) -> None:
        """Signal the worker, if it runs."""
        if self._child is not None:
            self._child.send_signal(number)
            self._child.send_signal(signal.SIGCONT)  # a stopped one takes the signal only when it goes on
        elif self.process is not None:
            self.process.send(number)
            self.process.send(signal.SIGCONT)

    def look(self) -> None:
        """See that the worker ended."""
        if self.process is None or self.alive():
            return
        now = time.monotonic()
        status = None if self._child is None else self._child.returncode
        self.process = self._child = None
        self.refused = status == REFUSED
        if self.refused:
            self._due = now + AGAIN_S
            return
        self.served = True
        self._told = False
        self._due = now + self._backoff.after(now - self._began)
        say(f"the worker of {self.device.ref} {_ending(status)}; starting it again")

    def adopt(self, known: ProcessId) -> None:
        """Watch a living worker of the same home and namespace, which was not started by us."""
        self._began = time.monotonic()
        self.process = known
        self.refused, self.served, self._told = False, True, False
        say(f"{self.device.ref} is served by a worker that this foxqueue up did not start (pid {known.pid})")

    def is_due(self) -> bool:
        """Whether it is time to start a worker."""
        return self.process is None and time.monotonic() >= self._due

    def is_untold(self) -> bool:
        """Whether it was refused and nobody has been told yet."""
        return self.refused and not self._told

    def tell(self, holder: str) -> None:
        """Say once, until the device is served again, that another worker has it.

        Args:
            holder: who it is, empty when that cannot be told.
        """
        self._told = True
        text = f"is served by another worker ({holder})" if holder else "was refused to its worker, see above"
        say(f"{self.device.ref} {text}: trying again every {AGAIN_S:g} s")

    def put_off(self) -> None:
        """Look again later whether the other worker has gone."""
        self._due = time.monotonic() + AGAIN_S

    def start(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start a worker.

        Args:
            command: of the worker, whole.
            environ: its environment.
        """
        self._began = time.monotonic()
        try:
            # A session of its own: Ctrl-C at the terminal is for `up` alone, which asks the workers to drain.
            self._child = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._due = self._began + max(1.0, self._backoff.after(0.0))
            say(f"the worker of {self.device.ref} cannot be started: {error}; trying again")
            return
        self.process = ProcessId.of(self._child.pid)
        self.refused = False


class Slots:
    """The workers of one `up`.

    Args:
        config: home and namespace they serve.
        url: of the server, with everything needed to connect but the password.
        devices: one worker each.
        strays: ends what dead workers leave.
        flags: device options, as `up` was given them.
        command: in place of ``python -m workers``.
    """

    def __init__(
        self,
        config: Config,
        url: str,
        devices: Sequence[Device],
        strays: Strays,
        flags: Sequence[str] = (),
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self._config = config
        self._devices = [*devices]
        self._strays = strays
        self._command = [*command]
        self._flags = [*flags]
        self._environ = worker_environment(config, url, os.environ)
        self.slots = [Slot(device) for device in devices]

    def tend(self) -> None:
        """Look after each worker once; no successor is started before what its predecessor left is dead."""
        for slot in self.slots:
            slot.look()
        clear = self._strays.end(self._children(), self._devices)
        if self.hopeless():
            return
        for slot in self.slots:
            if slot.process is None:
                self._fill(slot, clear)

    def _fill(self, slot: Slot, clear: bool) -> None:
        known = left_behind(self._config, slot.device)
        if known:
            slot.adopt(known)
            return
        if slot.is_untold():
            slot.tell(holder_of(self._config, slot.device))
        if not (clear and slot.is_due()):
            return
        if slot.refused and holder_of(self._config, slot.device):
            slot.put_off()
        else:
            slot.start([*self._command, "--gpu", slot.device.uuid, *self._flags], self._environ)

    def hopeless(self) -> bool:
        """Whether every device was refused whenever it was asked for."""
        return all(slot.refused and not slot.served for slot in self.slots)

    def wanted(self) -> list[Slot]:
        """Those that no other worker serves."""
        return [slot for slot in self.slots if not slot.refused]

    def end(self, signals: StopSignals, drain_s: float = DRAIN_S) -> bool:
        """SIGTERM to all, and wait for them; then runs whose worker is dead are ended, and what escaped from them.

        Args:
            signals: the first is what ends us; the second is a second SIGTERM, the third a SIGKILL to the workers.
            drain_s: seconds after which they are killed in any case.

        Returns:
            Whether nothing is left.
        """
        ended = self._end_workers(signals, drain_s)
        ended = end_runs(lone_runs(self._config)) and ended
        self._strays.end(self._children(), self._devices, patience_s=1.0)
        return ended and not self._strays.stuck

    def _end_workers(self, signals: StopSignals, drain_s: float) -> bool:
        self._send(signal.SIGTERM)
        deadline = time.monotonic() + drain_s
        urged, killed = 0.0, False
        while any(slot.alive() for slot in self.slots):
            late = time.monotonic() > deadline
            if signals.count > 2 or late:
                if not killed:
                    killed = True
                    deadline = min(deadline, time.monotonic())
                    say(f"workers did not end within {drain_s:g} s and are killed" if late else "killing the workers")
                self._send(signal.SIGKILL)
                if time.monotonic() > deadline + KILLED_S:
                    say("a worker does not end, not even by SIGKILL: the kernel holds it")
                    return False
            elif signals.count == 2 and time.monotonic() > urged + URGED_S:
                urged = time.monotonic()
                self._send(signal.SIGTERM)  # again: of two that come at once a worker sees one
            signals.wait(_LOOK_S)
        return True

    def _children(self) -> list[int]:
        return [slot.child for slot in self.slots if slot.child is not None]

    def _send(self, number: signal.Signals) -> None:
        for slot in self.slots:
            if slot.alive():
                slot.send(number)


def worker_environment(config: Config, url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What a worker finds in its environment: home, namespace and server spelt out, whatever they came from."""
    found = {name: value for name, value in environ.items() if not name.startswith("FOXQUEUE_PASSWORD")}
    if config.url and config.password is not None:
        found["FOXQUEUE_PASSWORD"] = config.password
    elif not config.url and own_password(config) is not None:
        found["FOXQUEUE_PASSWORD_FILE"] = str(password_file(config))
    return found | {
        "FOXQUEUE_HOME": str(config.home),
        "FOXQUEUE_NAMESPACE": config.namespace,
        "FOXQUEUE_URL": url,
    }


def _ending(status: int | None) -> str:
    if status is None:
        return "ended"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
