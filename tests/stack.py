"""A whole foxqueue for system tests: its own home, real processes, driven through the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
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
        environ: more variables for every process. STACK_SERVER in our own names another server program than the
            embedded one for all stacks: the main job's scenarios run on each server that is found.
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
            **({"FOXQUEUE_REDIS_SERVER": os.environ["STACK_SERVER"]} if "STACK_SERVER" in os.environ else {}),
            **(environ or {}),
        }
        self._started: list[subprocess.Popen[bytes]] = []

    # --- processes -------------------------------------------------------------------------------------

    def start(self, *arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start ``foxqueue …`` in the background; its messages go to a file in the root."""
        return self._start([str(FOXQUEUE), *arguments], arguments[0], {**self.environ, **(environ or {})})

    def start_worker(self, gpu: str, *flags: str, before: str = "") -> subprocess.Popen[bytes]:
        """Start one worker in the background; its messages go to ``worker.log``.

        Args:
            gpu: its device.
            flags: ``--simulate …``.
            before: Python that runs in its process first, to stop or kill it at a place that no signal could hit.
        """
        code = f"{before}\nimport sys\nfrom workers.__main__ import main\nsys.exit(main(sys.argv[1:]))"
        return self._start([sys.executable, "-P", "-c", code, "--gpu", gpu, *flags], "worker", self.environ)

    def _start(self, command: list[str], name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command,
                env=environ,
                cwd=self.work,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def serve(self, ttl_ms: int = 2000) -> None:
        """Start our own server without workers, under short leases."""
        self.start("server")
        until(lambda: self.fox("ls", check=False).returncode == 0, 15, "the server")
        self.api.broker.configure(ttl_ms)

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

    def exit_status(self, pid: int, seconds: float = 20.0) -> int:
        """Wait for the end of a background process."""
        return next(process for process in self._started if process.pid == pid).wait(seconds)

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

    def queue(self, *command: str | bytes, **options: Any) -> int:
        """Submit from this process, which is quicker than a command, and return the number."""
        options.setdefault("cwd", self.work)
        return self.api.submit(command, **options).number

    def client(self) -> Client:
        """A new client of this home in this process."""
        return Client(url=self.environ.get("FOXQUEUE_URL"), home=str(self.home))

    @cached_property
    def api(self) -> Client:
        """One client for all of a test, over every restart of the server."""
        return self.client()

    # --- looking ---------------------------------------------------------------------------------------

    def show(self, number: int) -> dict[str, Any]:
        """``foxqueue show N --json``."""
        found: dict[str, Any] = json.loads(self.fox("show", str(number), "--json").stdout)
        return found

    def job(self, number: int) -> dict[str, Any]:
        """The same object, without a command."""
        found: dict[str, Any] = self.api.job(number).to_dict()
        return found

    def events(self, number: int, *names: str) -> list[dict[str, str]]:
        """What the audit trail says about a job, oldest first; only these events, if there are names."""
        entries: Any = self.api.redis.xrange(self.api.broker.keys.events)
        found = [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in entries]
        return [event for event in found if event["job"] == str(number) and (not names or event["event"] in names)]

    def devices(self) -> dict[str, dict[str, Any]]:
        """The registered devices by UUID."""
        return {device["uuid"]: device for device in self.api.gpus()}

    def await_state(self, number: int, *states: str, seconds: float = 20.0) -> dict[str, Any]:
        """Wait until a job is in one of the states."""

        def arrived() -> dict[str, Any] | None:
            found = self.job(number)
            return found if found["state"] in states else None

        found = until(arrived, seconds, f"job {number} in {states}")
        assert found is not None
        return found

    def worker_of(self, number: int) -> ProcessId:
        """The worker process that has a running job."""
        name = self.await_state(number, "running")["worker"]

        def registered() -> ProcessId | None:
            pids = [worker["pid"] for worker in self.api.workers() if worker["id"] == name]
            return ProcessId.of(pids[0]) if pids else None

        found = until(registered, 10, f"worker {name} registered")
        assert found is not None
        return found

    def processes_of(self, number: int) -> list[int]:
        """Living processes of a job's current run, by their mark."""
        return marked(MARK, self.mark_of(number))

    def mark_of(self, number: int) -> str:
        """The mark of a job's current run."""
        job = self.api.job(number)
        return f"{self.api.broker.settings().instance}/{number}-{job.born}/{job.fence}"

    def runner_of(self, number: int) -> ProcessId:
        """The runner of a running job: the parent of its first process."""
        first = until(lambda: self.processes_of(number), 10, "processes of the job")[0]
        parent = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
        found = ProcessId.of(parent)
        assert found is not None
        return found

    def all_processes(self) -> list[int]:
        """Everything that runs for this home: what names it in its environment or command, or works in it, as a server
        without its `up` does; and the descendants."""
        name = os.fsencode(self.home)
        listed = (path.name for path in Path("/proc").iterdir())
        pids = {int(pid) for pid in listed if pid.isdigit() and _names(int(pid), name)}
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
        shutil.rmtree(self._short, ignore_errors=True)


@contextmanager
def ended(stack: Stack) -> Iterator[Stack]:
    """The stack, ended afterwards."""
    try:
        yield stack
    finally:
        stack.end()


def until_exists(flag: Path) -> tuple[str, ...]:
    """A command that goes on until the file is there."""
    code = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.02)"
    return (sys.executable, "-S", "-c", code)


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _names(pid: int, name: bytes) -> bool:
    with suppress(OSError):
        if os.fsencode(Path(f"/proc/{pid}/cwd").readlink()).startswith(name + b"/"):
            return True
    with suppress(OSError):
        for what in ("environ", "cmdline"):
            text = Path(f"/proc/{pid}/{what}").read_bytes() + b"\0"
            if any(name + end in text for end in (b"/", b"\0")):
                return True
    return False


def _kill(pid: int) -> None:
    identity = ProcessId.of(pid)
    if identity is not None:
        identity.send(signal.SIGKILL)


def gone(pids: list[int]) -> Callable[[], bool]:
    """A condition: none of these processes lives."""
    identities = [identity for identity in map(ProcessId.of, pids) if identity is not None]
    return lambda: not any(identity.alive() for identity in identities)
