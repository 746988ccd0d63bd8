"""Runs held to the GPU memory that they declared, and what their worker makes of the end."""

from __future__ import annotations

import pytest

from workers.enforcing import MemoryLimit, used_by
from workers.verdict import judge


def test_each_finding_is_told_once_with_its_figures() -> None:
    limit = MemoryLimit("warn", 8192)
    assert limit.judge(0) is None and limit.judge(8192) is None
    found = limit.judge(9000)
    assert found is not None and found.word == "over"
    assert "8.79G" in found.text and "(9000 MiB)" in found.text and "declared 8G (8192 MiB)" in found.text
    assert limit.judge(9500) is None
    unknown = limit.judge(None)
    assert unknown is not None and unknown.word == "unknown" and "NVML does not tell" in unknown.text
    assert limit.judge(None) is None


@pytest.mark.parametrize(("enforce", "declared"), [("off", 8192), ("kill", None)])
def test_nothing_is_held_to_nothing(enforce: str, declared: int | None) -> None:
    limit = MemoryLimit(enforce, declared)
    assert not limit.counts
    assert limit.judge(10**6) is None and limit.judge(None) is None


def test_only_kill_kills() -> None:
    assert [MemoryLimit(word, 1).kills for word in ("off", "warn", "kill")] == [False, False, True]


def test_what_the_processes_of_a_run_have() -> None:
    there = [(10, 100), (11, 200), (12, 4000), (13, None)]
    assert used_by({10, 11}, there) == 300
    assert used_by({99}, there) == 0
    assert used_by({10, 13}, there) is None


def test_a_run_ended_for_it_failed_by_gpu_oom() -> None:
    record = {"why": "over_memory", "exit_code": None, "signal": 15}
    verdict = judge(record, over_memory="9G of 8G")
    assert (verdict.verb, verdict.reason) == ("fail", "gpu_oom")
    assert verdict.detail == "ended by --enforce-memory: 9G of 8G"
    assert "more GPU memory than it declared" in judge(record).detail  # by a successor, who has no figures
