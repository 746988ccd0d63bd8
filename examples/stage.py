"""A foxqueue of the demo's own: a home that is removed, a private server, two simulated devices."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from foxqueue import Client, FoxqueueError
from foxqueue.config import load_config, server_socket
from foxqueue.places import read_json
from foxqueue.processes import ProcessId, descendants, marked

DEVICES = "2x24G"
UP_S = 60.0
DOWN_S = 60.0
KILL_S = 10.0


class DemoError(Exception):
    """The demo cannot go on. The text says why."""


class Stage:
    """Up while entered. Nothing of it is left afterwards: no process, no file."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="foxqueue-demo-"))
        self.log = self.home / "demo-up.log"
        self._up: subprocess.Popen[bytes] | None = None
        self._outside: Path | None = None
        self._open = True

    def __enter__(self) -> Stage:
        try:
            self._choose_home()
            with self.log.open("ab") as log:
                self._up = subprocess.Popen(
                    [foxqueue(), "up", "--simulate", DEVICES],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # a Ctrl-C is for the demo, which then ends this in order
                )
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for problem in self.end():
            print(f"demo: {problem}", file=sys.stderr)

    def _choose_home(self) -> None:
        """For this process and all it starts: nothing of the user's own queue, neither variables nor files."""
        for name in [name for name in os.environ if name.startswith("FOXQUEUE_") and name != "FOXQUEUE_REDIS_SERVER"]:
            del os.environ[name]
        os.environ["FOXQUEUE_HOME"] = str(self.home)
        os.environ["XDG_CONFIG_HOME"] = str(self.home / "config")
        os.chdir(self.home)
        config = load_config()
        if config.url:
            raise DemoError(f"{config.sources['url']} names a server, and the demo uses none but its own")
        socket = server_socket(config)
        self._outside = None if socket.is_relative_to(self.home) else socket.parent

    def client(self) -> Client:
        """A client, as soon as both devices have their worker."""
        deadline = time.monotonic() + UP_S
        client: Client | None = None
        while time.monotonic() < deadline:
            self.check()
            with suppress(FoxqueueError):
                client = client or Client()
                if len(client.workers()) == 2:
                    return client
            time.sleep(0.1)
        raise DemoError(f"the workers did not come up within {UP_S:g} s: {self.last_words()}")

    def check(self) -> None:
        """Raise DemoError when `foxqueue up` has ended."""
        if self._up is not None and self._up.poll() is not None:
            raise DemoError(f"foxqueue up ended with {self._up.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """The end of what `foxqueue up` said."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-30:]) or "it said nothing"

    def end(self) -> list[str]:
        """Cancel what runs, `foxqueue down`, and remove the home.

        Returns:
            A sentence for each thing that did not end as it should and had to be forced.
        """
        if not self._open:
            return []
        self._open = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C would leave things behind
        problems = self._down() if self._up is not None else []
        left = self._processes()
        if left and self._up is not None:
            names = ", ".join(f"{process.pid}" for process in left)
            problems.append(f"processes {names} ran on after foxqueue down")
        if not _until(lambda: not self._kill(), KILL_S):
            problems.append("not all processes could be killed")
        if self._up is not None:
            self._up.wait(KILL_S)
        os.chdir("/")
        for directory in filter(None, (self.home, self._outside)):
            shutil.rmtree(directory, ignore_errors=True)
            if directory.exists():
                problems.append(f"{directory} could not be removed")
        return problems

    def _down(self) -> list[str]:
        with suppress(FoxqueueError), Client() as fox:
            for job in fox.jobs(state=["pending", "scheduled", "running"], limit=1000):
                with suppress(FoxqueueError):
                    job.cancel()
        try:
            done = subprocess.run(
                [foxqueue(), "down"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DOWN_S,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return [f"foxqueue down did not end within {DOWN_S:g} s"]
        return [] if done.returncode == 0 else [f"foxqueue down exited with {done.returncode}: {done.stderr.strip()}"]

    def _processes(self) -> list[ProcessId]:
        """Everything that runs for this home: by its environment, what descends from that, and the server."""
        pids = set(marked("FOXQUEUE_HOME", str(self.home)))
        for pid in list(pids):
            pids.update(descendants(pid))
        found = [ProcessId.of(pid) for pid in sorted(pids - {os.getpid()})]
        for record in self.home.glob("*/server/server.json"):
            with suppress(KeyError, TypeError, ValueError):
                found.append(ProcessId.from_dict(read_json(record)["process"]))
        return [process for process in found if process is not None and process.alive()]

    def _kill(self) -> list[ProcessId]:
        left = self._processes()
        for process in left:
            process.send(signal.SIGKILL)
        return left


def foxqueue() -> str:
    """The program beside this interpreter."""
    return str(Path(sys.executable).with_name("foxqueue"))


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
