"""The bench runs and says what it measured. What the figures are is no matter of a test."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHEAP = ("calls", "many", "waiters", "recovery", "depth")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    """``python -m benchmarks …`` to its end."""
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = bench("--quick", "--json", *CHEAP)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def test_the_object_says_what_was_measured_on_what(found: dict[str, Any]) -> None:
    assert set(found) == {"machine", "quick", "seconds", "figures"}
    assert set(found["machine"]) == {"cores", "python", "server", "redis-py"}
    assert found["quick"] is True
    assert 0 < found["seconds"] < 60


def test_every_part_has_figures_and_something_to_hold_them_against(found: dict[str, Any]) -> None:
    for part in CHEAP:
        figures = [figure for figure in found["figures"] if figure["part"] == part]
        assert any(figure["target"] for figure in figures), part
    assert {figure["part"] for figure in found["figures"]} == set(CHEAP)


def test_every_figure_is_a_number_and_judged_by_its_target(found: dict[str, Any]) -> None:
    names = [(figure["part"], figure["name"]) for figure in found["figures"]]
    assert len(set(names)) == len(names)
    for figure in found["figures"]:
        assert set(figure) == {"part", "name", "value", "unit", "target", "holds"}
        assert math.isfinite(figure["value"])
        assert figure["value"] > 0, figure
        assert figure["holds"] == _judged(figure["value"], figure["target"]), figure


def _judged(value: float, target: str | None) -> bool | None:
    if target is None:
        return None
    sense, _, bound = target.rpartition(" ")
    return {"at least": value >= float(bound), "at most": value <= float(bound)}[sense]


@pytest.mark.soak
def test_the_part_leases_runs() -> None:
    """It starts a hundred processes, a worker and a compiler."""
    done = bench("--quick", "--json", "leases")
    assert done.returncode == 0, done.stderr
    assert len([figure for figure in json.loads(done.stdout)["figures"] if figure["target"]]) >= 12


def test_a_part_that_does_not_exist_is_refused_with_those_that_do() -> None:
    done = bench("call")
    assert done.returncode == 2
    assert "'call' is no part" in done.stderr
    assert all(part in done.stderr for part in CHEAP)


def test_without_the_extra_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import __main__ as program

    monkeypatch.setattr(program, "PEERS", ("rq_that_is_not_installed",))
    with pytest.raises(SystemExit) as refused:
        program.main(["peers"])
    assert refused.value.code == 2
    assert "need rq_that_is_not_installed: pip install -e '.[bench]'" in capsys.readouterr().err
