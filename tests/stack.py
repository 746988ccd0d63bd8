"""A whole foxqueue for system tests: its own home, real processes, driven through the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wait import until

from foxqueue import Client
from foxqueue.processes import ProcessId, descendants, marked

FOXQUEUE = Path(sys.executable).with_name("foxqueue")
MARK = "FOXQUEUE_RUN"


class Stack:
    """One home and what runs for it.

    Args:
        root: directory of the test.
        environ: more variables for every process.
    """

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self.root = root
        self.home = root / "home"
        self.work = root / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self._short = tempfile.mkdtemp(prefix="fq-")  # sockets of deep directories go here
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
        self.environ = {
            **kept,
            "FOXQUEUE_HOME": str(self.home),
            "HOME": str(root),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_RUNTIME_DIR": self._short,
            **(environ or {}),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    # --- processes -------------------------------------------------------------------------------------

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start ``foxqueue …`` in the background; its messages go to a file in the root."""
        log = (self.root / f"{arguments[0]}.log").open("ab")
        with log:
            process = subprocess.Popen(
                [str(FOXQUEUE), *arguments],
                env={**self.environ, **(environ or {})},
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def up(self, *flags: str, workers: int = 2, seconds: float = 30.0) -> subprocess.Popen[bytes]:
        """Start ``foxqueue up`` and wait until its workers have registered."""
        process = self.start("up", *(flags or ("--simulate", "2x24G")))
        until(
            lambda: self._workers_or_death(process) >= workers, seconds, f"{workers} workers: {self.log('up')[-1500:]}"
        )
        return process

    def _workers_or_death(self, process: subprocess.Popen[bytes]) -> int:
        assert process.poll() is None, f"up ended: {self.log('up')}"
        done = self.fox("workers", "--json", check=False)
        return len(json.loads(done.stdout)) if done.returncode == 0 else 0

    def log(self, name: str) -> str:
        """What a background command said."""
        path = self.root / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def fox(
        self, *arguments: str, check: bool = True, timeout: float = 60.0, environ: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``foxqueue …`` to its end."""
        done = subprocess.run(
            [str(FOXQUEUE), *arguments],
            env={**self.environ, **(environ or {})},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
        )
        if check:
            assert done.returncode == 0, f"{arguments} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def submit(self, *command: str, flags: tuple[str, ...] = ()) -> int:
        """Submit a command and return its number."""
        return int(self.fox("submit", "--quiet", *flags, "--", *command).stdout)

    def client(self) -> Client:
        """A client of this home in this process."""
        return Client(home=str(self.home))

    # --- looking ---------------------------------------------------------------------------------------

    def show(self, number: int) -> dict[str, Any]:
        """``foxqueue show N --json``."""
        found: dict[str, Any] = json.loads(self.fox("show", str(number), "--json").stdout)
        return found

    def await_state(self, number: int, *states: str, seconds: float = 20.0) -> dict[str, Any]:
        """Wait until a job is in one of the states."""
        client = self.client()

        def arrived() -> dict[str, Any] | None:
            found: dict[str, Any] = client.job(number).to_dict()
            return found if found["state"] in states else None

        found = until(arrived, seconds, f"job {number} in {states}")
        assert found is not None
        return found

    def worker_of(self, number: int) -> ProcessId:
        """The worker process that has a running job."""
        name = self.await_state(number, "running")["worker"]
        client = self.client()

        def registered() -> ProcessId | None:
            pids = [worker["pid"] for worker in client.workers() if worker["id"] == name]
            return ProcessId.of(pids[0]) if pids else None

        found = until(registered, 10, f"worker {name} registered")
        assert found is not None
        return found

    def processes_of(self, number: int) -> list[int]:
        """Living processes of a job's current run, by their mark."""
        job = self.client().job(number)
        instance = self.client().broker.settings().instance
        return marked(MARK, f"{instance}/{number}-{job.born}/{job.fence}")

    def all_processes(self) -> list[int]:
        """Everything that runs for this home: by its environment, and what descends from that."""
        pids = set(marked("FOXQUEUE_HOME", str(self.home)))
        for pid in list(pids):
            pids.update(descendants(pid))
        return sorted(pids - {os.getpid()})

    # --- ends ------------------------------------------------------------------------------------------

    def kill_everything(self) -> None:
        """SIGKILL to all processes of this home, the server included, as a power cut would."""

        def none_left() -> bool:
            pids = self.all_processes()
            for pid in pids:
                _kill(pid)
            return not pids

        until(none_left, 20, "the end of all processes")
        for process in self._started:
            process.wait(10)

    def end(self) -> None:
        """End whatever is left."""
        for pid in self.all_processes():
            identity = ProcessId.of(pid)
            if identity is not None:
                identity.send(signal.SIGCONT)
        self.kill_everything()


def _kill(pid: int) -> None:
    identity = ProcessId.of(pid)
    if identity is not None:
        identity.send(signal.SIGKILL)


def gone(pids: list[int]) -> Callable[[], bool]:
    """A condition: none of these processes lives."""
    identities = [identity for identity in map(ProcessId.of, pids) if identity is not None]
    return lambda: not any(identity.alive() for identity in identities)
