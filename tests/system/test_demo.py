"""The demo and the examples, as a newcomer runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from stack import Stack
from wait import until

from foxqueue.processes import marked

EXAMPLES = Path(__file__).parents[2] / "examples"
RUNS = 9


class Demo:
    """One demo whose temporary home lies in a directory of the test."""

    def __init__(self, root: Path) -> None:
        self.temporary = root / "t"
        self.temporary.mkdir()
        self.user = root / "user"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
        self.environ = {
            **kept,
            "TMPDIR": str(self.temporary),
            "HOME": str(root),
            "XDG_RUNTIME_DIR": str(self.temporary),
            # what a user's own queue would be: the demo must touch neither
            "FOXQUEUE_HOME": str(self.user),
            "FOXQUEUE_NAMESPACE": "precious",
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / "demo.py"), *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self._process

    def homes(self) -> list[str]:
        return [str(path) for path in self.temporary.glob("foxqueue-demo-*")]

    def processes(self, homes: list[str]) -> list[int]:
        return [pid for home in homes for pid in marked("FOXQUEUE_HOME", home)]

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.communicate(timeout=90)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    made = Demo(tmp_path)
    yield made
    made.end()


@pytest.fixture
def promises(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _module("promises", monkeypatch)


def _module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_demo_keeps_its_promises_and_leaves_nothing(demo: Demo) -> None:
    process = demo.start("--epochs", "12")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, out + err
    rows = {line.split()[1]: line.split() for line in out.splitlines() if "(simulated)" in line}
    assert len(rows) == RUNS
    killed = rows["loses-its-worker"]
    assert killed[2:5] == ["8", "succeeded", "exit_code"] and killed[8:10] == ["1", "1"] and killed[10] == "epoch"
    assert rows["to-be-cancelled"][3:5] == ["cancelled", "cancelled_by_user"]
    assert rows["to-fail"][3:5] == ["failed", "exit_code"]
    assert "NOT KEPT" not in out and "no promises broken" in out
    assert not demo.homes()
    assert not demo.user.exists()


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_the_demo_exits_with_1_when_a_promise_is_not_kept(demo: Demo) -> None:
    process = demo.start("--epochs", "4", "--spare-the-worker")
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1, out + err
    assert "NOT KEPT" in out and "which loses its worker, has losses 0 and not 1" in out
    assert not demo.homes()


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(demo: Demo, number: signal.Signals) -> None:
    process = demo.start()
    assert process.stdout is not None
    until(lambda: "to-be-cancelled, priority 8: running" in process.stdout.readline(), 60, "a run", every=0.0)
    homes = demo.homes()
    assert homes and demo.processes(homes)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert not demo.homes() and not demo.processes(homes)


@pytest.mark.soak
def test_an_interrupted_training_comes_to_the_same_network(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole", "6")
    half = _train(tmp_path / "halves", "3")
    resumed = _train(tmp_path / "halves", "6")
    assert (half["resumed_from"], resumed["resumed_from"]) == (0, 3)
    assert resumed["accuracy"] == whole["accuracy"]


def _train(directory: Path, epochs: str) -> dict[str, Any]:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, str(EXAMPLES / "train_digits.py"), "--epochs", epochs, "--checkpoints", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.soak
def test_the_sweep_prints_its_best_run(running: Stack) -> None:
    command = [sys.executable, str(EXAMPLES / "sweep.py")]
    done = subprocess.run(command, env=running.environ, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("best: job ")
    without = {**running.environ, "FOXQUEUE_HOME": str(running.root / "nothing")}
    refused = subprocess.run(command, env=without, capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1 and refused.stderr.startswith("sweep: no server")


# --- the checks themselves -----------------------------------------------------------------------------


def _run(promises: ModuleType, number: int, start: str, end: str, **changed: Any) -> Any:
    job = {
        "number": number,
        "name": f"n{number}",
        "state": "succeeded",
        "reason": "exit_code",
        "attempts": 1,
        "losses": 0,
        "exit_code": 0,
        "started_at": start,
        "finished_at": end,
        "gpu_uuids": ["SIM-a"],
        **changed,
    }
    return promises.Run("succeeds", job, number, 0.97, 0, "")


def _events(*lines: str) -> list[dict[str, str]]:
    return [dict(zip(("event", "job", "device"), line.split(), strict=False)) for line in lines]


GOOD = _events("enqueue 1", "enqueue 2", "claim 1 SIM-a", "complete 1", "claim 2 SIM-a", "complete 2")
DEVICES = [{"uuid": "SIM-a", "kind": "simulated"}]


def _broken(promises: ModuleType, runs: list[Any], events: Any = GOOD, devices: Any = DEVICES) -> list[str]:
    return [fault for faults in promises.check(runs, events, devices).values() for fault in faults]


@pytest.mark.soak
def test_promises_that_are_kept(promises: ModuleType) -> None:
    assert _broken(promises, [_run(promises, 1, "10", "20"), _run(promises, 2, "20", "30")]) == []


@pytest.mark.soak
def test_promises_that_are_not_kept(promises: ModuleType) -> None:
    first, second = _run(promises, 1, "10", "20"), _run(promises, 2, "20", "30")

    def only(sentence: str, *, runs: Any = (first, second), events: Any = GOOD, devices: Any = DEVICES) -> None:
        assert any(sentence in fault for fault in _broken(promises, list(runs), events, devices))

    only("n2) ran at once on SIM-a", runs=(first, _run(promises, 2, "19", "30")))
    only("has state 'failed' and not 'succeeded'", runs=(first, _run(promises, 2, "20", "30", state="failed")))
    only("the queue accepted 1, 2", runs=(first,))
    only("is of kind nvml", devices=[{"uuid": "SIM-a", "kind": "nvml"}])
    only("has 2 accepted ends", events=[*GOOD, {"event": "complete", "job": "2"}])
    twice = _events("enqueue 1", "enqueue 2", "claim 1 SIM-a", "claim 2 SIM-a", "complete 1", "complete 2")
    only("was given SIM-a while job 1 (n1) had it", events=twice)
    late = _events("enqueue 1", "enqueue 2", "claim 2 SIM-a", "complete 2", "claim 1 SIM-a", "complete 1")
    only("job 2 (n2) ran before job 1 (n1)", events=late)


@pytest.mark.soak
def test_a_broken_promise_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("promises", "stage"):
        _module(name, monkeypatch)
    judge = _module("demo", monkeypatch).judge
    assert judge({"one": [], "two": []}, 1.0) == 0
    assert judge({"one": [], "two": ["it was not"]}, 1.0) == 1
    assert "NOT KEPT  two\n          it was not" in capsys.readouterr().out
