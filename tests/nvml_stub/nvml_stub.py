"""The stand-in for NVIDIA's library: build it, write its state, start processes that load it.

Imports the standard library only: jobs of the tests import it to hold memory.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIBRARY = "libnvidia-ml.so.1"
CUDA = "libcuda.so.1"
NO_COMPILER = "NO C COMPILER: nothing that needs the NVML stub is tested; install gcc or clang, or set CC"


class NoCompiler(Exception):
    """There is no C compiler on this machine."""


def build(outdir: Path) -> Path:
    """Compile NVIDIA's library into ``outdir``, unless it is there, and return that folder.

    Raises:
        NoCompiler: there is none.
        subprocess.CalledProcessError: the source does not compile.
    """
    return _build(outdir, LIBRARY, "nvml_stub.c")


def build_cuda(outdir: Path) -> Path:
    """As `build`, CUDA's library, for processes that hold memory as CUDA programs do."""
    return _build(outdir, CUDA, "cuda_stub.c")


def _build(outdir: Path, name: str, source: str) -> Path:
    library = outdir / name
    if library.exists():
        return outdir
    compiler = os.environ.get("CC") or next((cc for cc in ("cc", "gcc", "clang") if shutil.which(cc)), None)
    if not compiler:
        raise NoCompiler(NO_COMPILER)
    outdir.mkdir(parents=True, exist_ok=True)
    fresh = outdir / f"{name}.{os.getpid()}"
    flags = ["-std=gnu11", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
    command = [*compiler.split(), *flags, "-o", str(fresh), str(HERE / source), "-lpthread", "-ldl"]
    subprocess.run(command, check=True)
    fresh.replace(library)
    return outdir


class State:
    """The fake machine: what GPUs it has, and who holds their memory.

    Args:
        root: folder for the state file and the list of holders.
        library: folder of the compiled library, as `build` gives it.
    """

    def __init__(self, root: Path, library: Path) -> None:
        self.library = library
        self.root = root
        self.path = root / "nvml.state"
        self.procs = root / "procs"
        self.procs.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self, *lines: str | bytes) -> None:
        """Replace the state by these lines (README.md has their forms). Readers see the old one or the new one."""
        every = (f"system procs_dir {self.procs}", *lines)
        descriptor, fresh = tempfile.mkstemp(dir=self.root)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in every)
        Path(fresh).replace(self.path)

    def env(self, base: Mapping[str, str] | None = None, **more: str) -> dict[str, str]:
        """The environment for a process that shall see this machine: ``base`` (ours) without CUDA_*, and ``more``."""
        known = os.environ if base is None else base
        env = {name: value for name, value in known.items() if not name.startswith("CUDA_")}
        earlier = env.get("LD_LIBRARY_PATH")
        env["LD_LIBRARY_PATH"] = f"{self.library}{os.pathsep}{earlier}" if earlier else str(self.library)
        env["NVML_STUB_STATE"] = str(self.path)
        return {**env, **more}

    def hold(self, gpu: int | str, mib: int, pid: int | None = None) -> Path:
        """Let process ``pid`` (this one) hold memory of a GPU until it ends or the returned file is removed.

        ``gpu`` is an index; ``1_0`` is MIG instance 0 of GPU 1.
        """
        return hold(self.procs, gpu, mib, pid)

    def holding(self, gpu: int | str, mib: int) -> list[str]:
        """A command that holds memory of a GPU, prints ``holding`` and goes on until it is killed."""
        code = (
            f"import sys, signal; sys.path.insert(0, {str(HERE)!r}); import nvml_stub; from pathlib import Path\n"
            f"nvml_stub.hold(Path({str(self.procs)!r}), {gpu!r}, {mib}); print('holding', flush=True); signal.pause()"
        )
        return [sys.executable, "-c", code]


def hold(procs: Path, gpu: int | str, mib: int, pid: int | None = None) -> Path:
    """As `State.hold`, for a process that has only the folder of holders."""
    file = procs / f"{gpu}.{pid or os.getpid()}"
    fresh = procs / f".{file.name}"  # the stub reads every name of the form GPU.PID…
    fresh.write_text(str(mib))
    return fresh.replace(file)


_CHILD = """
import dataclasses, json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
def plain(value):
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else repr(value)
scope = {}
for line in sys.stdin:
    source, is_value = json.loads(line)
    began = time.monotonic()
    try:
        answer = {"value": eval(source, scope) if is_value else exec(source, scope)}
    except Exception as error:
        answer = {"error": type(error).__name__, "text": str(error)}
    answer["seconds"] = time.monotonic() - began
    print(json.dumps(answer, default=plain), file=answers, flush=True)
"""


class Answered(Exception):
    """What was run in the child raised. ``kind`` is the name of the error's class."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Child:
    """A Python process that loads the stub from its start on and runs what it is told, one thing after another.

    Dataclasses come back as dicts, tuples as lists. ``seconds`` is how long the last thing took. ``prefix`` are words
    in front of its command.
    """

    def __init__(self, env: Mapping[str, str], cwd: Path | None = None, prefix: Sequence[str] = ()) -> None:
        self.seconds = 0.0
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", _CHILD],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, source: str) -> None:
        """Execute statements; their names stay."""
        self._answer(source, False)

    def ask(self, source: str) -> Any:
        """Evaluate an expression. Raises Answered when it raises."""
        return self._answer(source, True)

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def _answer(self, source: str, is_value: bool) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([source, is_value]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.seconds = answer["seconds"]
        if "error" in answer:
            raise Answered(answer["error"], answer["text"])
        return answer["value"]
