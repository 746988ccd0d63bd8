"""Many real processes at a low price: one Python imports, and forks each of them when told.

A Python with foxqueue in it takes 0.2 s of processor to start, a fork of one that has it 2 ms; so 100 processes stand
ready within a second on two cores. The one that forks has no threads and no connections: each process makes its own.
Those of one barrier say that they are there and go on, all at once, when the writing end of a pipe is closed: that
one system call wakes all who read it.

This file is also the program that forks (``python crowd.py FOLDER MODULE…``); it is told what to do, one JSON object a
line.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


class Crowd:
    """The program that forks, and what it forked; all of it ends with the block.

    Args:
        folder: for what the processes say; made when missing.
        modules: what it imports: functions of these are called in the processes.
        environ: of all processes.
    """

    def __init__(self, folder: Path, *modules: str, environ: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._log = (folder / "crowd.log").open("ab")
        known = dict(os.environ if environ is None else environ)
        path = os.pathsep.join((str(HERE), str(HERE / "nvml_stub"), *filter(None, [known.get("PYTHONPATH")])))
        self._program = subprocess.Popen(
            [sys.executable, __file__, str(folder), *modules],
            env={**known, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def start(self, function: str, *arguments: Any, barrier: bool = False) -> int:
        """Fork a process that calls ``module:function`` with these (JSON) arguments; its pid.

        What the function returns is kept, for `answer`. At a barrier it is called when `release` was.
        """
        return int(self._ask(do="start", function=function, arguments=arguments, barrier=barrier))

    def release(self) -> None:
        """Let all go who stand at the barrier, when the last one has come."""
        self._ask(do="release")

    def wait(self, pid: int, seconds: float = 60.0) -> int:
        """The exit status of a process as `os.waitstatus_to_exitcode` gives it, when it has ended."""
        return int(self._ask(do="wait", pid=pid, seconds=seconds))

    def answer(self, pid: int, seconds: float = 60.0) -> Any:
        """What the function returned in that process, when it has ended. Fails with its traceback if it raised."""
        status = self.wait(pid, seconds)
        file = self.folder / f"{pid}.json"
        assert status == 0 and file.exists(), f"process {pid} ended with {status}: {self.messages()}"
        return json.loads(file.read_text())

    def messages(self) -> str:
        """What all of them wrote on standard error, the end of it."""
        return (self.folder / "crowd.log").read_text(errors="replace")[-3000:]

    def _ask(self, **what: Any) -> Any:
        assert self._program.stdin is not None and self._program.stdout is not None
        self._program.stdin.write(json.dumps(what) + "\n")
        self._program.stdin.flush()
        line = self._program.stdout.readline()
        assert line, f"the program that forks has ended: {self.messages()}"
        answer = json.loads(line)
        assert "error" not in answer, f"{what}: {answer['error']}: {self.messages()}"
        return answer["value"]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._ask(do="end")
        self._program.kill()
        self._program.communicate()
        self._log.close()


# --- the program ------------------------------------------------------------------------------------------------


class _Forks:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._living: set[int] = set()
        self._ended: dict[int, int] = {}
        self._gate: tuple[int, int] | None = None  # a pipe: closing its writing end opens the barrier
        self._ready: tuple[int, int] | None = None  # a pipe: one byte for each who stands there
        self._standing = 0

    def start(self, function: str, arguments: list[Any], barrier: bool) -> int:
        if barrier and self._gate is None:
            self._gate, self._ready = os.pipe(), os.pipe()
        pid = os.fork()
        if not pid:
            self._be(function, arguments, barrier)
        self._living.add(pid)
        self._standing += barrier
        return pid

    def _be(self, function: str, arguments: list[Any], barrier: bool) -> None:
        """The new process, to its end."""
        status = 1
        try:
            os.close(0)
            os.dup2(2, 1)
            if self._gate is not None and self._ready is not None:
                os.close(self._gate[1])
                if barrier:
                    os.write(self._ready[1], b".")
                    os.read(self._gate[0], 1)
            module, _, name = function.partition(":")
            value = getattr(sys.modules[module], name)(*arguments)
            fresh = self._folder / f".{os.getpid()}"
            fresh.write_text(json.dumps(value))
            fresh.replace(self._folder / f"{os.getpid()}.json")
            status = 0
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 1
        except BaseException:  # noqa: BLE001 whatever it is, this process ends here
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(status)

    def release(self) -> None:
        if self._gate is None or self._ready is None:
            raise RuntimeError("nobody stands at the barrier")
        while self._standing:
            self._standing -= len(os.read(self._ready[0], self._standing))
        for descriptor in (*self._gate, *self._ready):
            os.close(descriptor)
        self._gate = self._ready = None

    def wait(self, pid: int, seconds: float) -> int:
        if pid in self._living:
            ends = os.pidfd_open(pid)
            try:
                if not select.select([ends], [], [], seconds)[0]:
                    raise TimeoutError(f"process {pid} goes on after {seconds:g} s")
            finally:
                os.close(ends)
            self._ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            self._living.discard(pid)
        return self._ended[pid]

    def end(self) -> None:
        for pid in self._living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._living.clear()


def _serve(folder: Path, modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    forks = _Forks(folder)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = {"value": getattr(forks, told.pop("do"))(**told)}
        except Exception as error:  # noqa: BLE001 told to who asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2:])
