"""Whether a GPU's memory is there for the next run: stable, back after the last one, or dirty."""

from __future__ import annotations

from typing import Any

import pytest

from foxqueue.admission import FreeMemory, Returning
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.strangers import Stranger
from workers.admission import Admission, hidden_mib

GPU = Device("GPU-1", 0, "NVIDIA H200", "nvml", 24_000)
XORG = Stranger(10, 200, "root", "Xorg")
ANN = Stranger(11, 5000, "ann", "python train.py")


def look(used: int | None, state: Any = "free", strangers: tuple[Stranger, ...] = (), **more: Any) -> Observation:
    free = None if used is None else 24_000 - used
    detail = "" if state == "free" else "why"
    return Observation(24_000, free, 0, state, detail, strangers, used, **more)


def admission(*used: int, samples: int = 3, device: Device = GPU) -> Admission:
    made = Admission(device, samples, 10.0)
    for mib in used:
        made.take(look(mib))
    return made


# --- free memory that stays ---------------------------------------------------------------------------


def test_the_least_of_the_last_looks_and_the_fresh_one_is_offered() -> None:
    free = FreeMemory(3)
    assert not free.full and free.stable(10) == 10
    for mib in (5, 7, 9):
        free.add(mib, 0)
    assert free.full and free.stable(10) == 5 and free.stable(3) == 3
    free.add(8, 0)
    assert free.stable(10) == 7
    free.keep(1)
    assert free.full and free.stable(10) == 8
    free.keep(4)
    assert not free.full and free.stable(10) == 8


def test_a_look_that_shows_less_counts_though_it_comes_early() -> None:
    made = admission(0, 0, 0)
    made.take(look(9000), counts=False)
    made.take(look(2000), counts=False)
    assert made.judge(look(0), 0).seen.memory_free_mib == 15_000
    for _ in range(2):
        made.take(look(0))
        assert made.judge(look(0), 0).seen.memory_free_mib == 15_000
    made.take(look(0))
    assert made.judge(look(0), 0).seen.memory_free_mib == 24_000


def test_unknown_free_memory_is_neither_none_nor_all() -> None:
    free = FreeMemory(2)
    free.add(5, 0)
    free.add(None, None)
    assert free.stable(9) is None
    free.add(6, 0)
    assert free.stable(9) is None and free.stable(None) is None
    free.add(7, 0)
    assert free.stable(9) == 6


def test_what_was_in_use_before_is_the_most_of_the_looks() -> None:
    free = FreeMemory(3)
    assert free.before(40) == 40 and free.before(None) is None
    for hidden in (100, None, 30):
        free.add(1, hidden)
    assert free.before(40) == 100, "what an earlier run left does not become the measure of the next one"


@pytest.mark.parametrize(
    ("before", "now", "missing"), [(100, 100, 0), (100, 356, 0), (100, 357, 257), (None, 9, 0), (100, None, 0)]
)
def test_memory_is_back_within_what_a_driver_keeps(before: int | None, now: int | None, missing: int) -> None:
    left = Returning(7, before, 50.0)
    assert left.missing(now) == missing
    assert not left.overdue(59.9, 10.0) and left.overdue(60.0, 10.0)


# --- whose memory --------------------------------------------------------------------------------------


def test_processes_that_can_be_seen_account_for_themselves() -> None:
    assert hidden_mib(look(5200, strangers=(ANN,), ignored=(XORG,))) == 0
    assert hidden_mib(look(6000, strangers=(ANN,))) == 1000
    hidden = Stranger(4711, 5000)  # of another container: no such process here
    assert hidden_mib(look(5000, strangers=(hidden,))) == 5000
    assert hidden_mib(look(None)) is None
    assert hidden_mib(look(5000, strangers=(Stranger(12, None, "ann", "x"),))) is None, "how much is its is not told"


# --- before a claim ------------------------------------------------------------------------------------


def test_the_first_looks_are_waited_for() -> None:
    made = admission(0, 0)
    assert made.judge(look(0), 0).word == "waits"
    made.take(look(0))
    assert made.judge(look(0), 0).word == "free"


def test_a_run_is_offered_what_has_been_free_for_some_time() -> None:
    made = admission(0, 9000, 0)
    standing = made.judge(look(0), 0)
    assert (standing.word, standing.seen.memory_free_mib) == ("free", 15_000)
    made.take(look(0))
    made.take(look(0))
    assert made.judge(look(0), 0).seen.memory_free_mib == 24_000
    assert made.judge(look(4000), 0).seen.memory_free_mib == 20_000


@pytest.mark.parametrize("state", ["occupied", "unavailable"])
def test_what_the_look_says_comes_first(state: str) -> None:
    standing = admission(0, 0, 0).judge(look(0, state), 0)
    assert (standing.word, standing.text) == ("taken", "why")


def test_a_device_that_never_changes_is_free_at_once() -> None:
    made = admission(device=Device("SIM-1", 0, "x", "simulated", 24_000))
    made.claimed(look(0))
    made.ended(7, 0)
    standing = made.judge(look(0), 0)
    assert (standing.word, standing.seen.memory_free_mib) == ("free", 24_000)


def test_a_slot_is_offered_what_is_free_at_the_moment() -> None:
    made = admission(9000, 9000, 9000, device=GPU.as_slot(1))
    assert made.judge(look(0), 0).seen.memory_free_mib == 24_000
    made.claimed(look(0))
    made.ended(7, 0)
    assert made.judge(look(9000), 0).word == "free", "it may be a sibling's"


# --- after a run ---------------------------------------------------------------------------------------


def after_a_run(before: int = 0) -> Admission:
    made = admission(before, before, before)
    made.claimed(look(before))
    made.ended(7, 100.0)
    return made


def test_memory_of_a_run_comes_back_or_the_device_is_dirty() -> None:
    made = after_a_run()
    made.take(look(8000))  # does not count: it is still the run's
    standing = made.judge(look(8000, "occupied"), 101.0)
    assert (standing.word, standing.text) == ("waits", "7.82G of its memory is still coming back since job 7 ended")
    assert made.returning
    standing = made.judge(look(2000, "occupied"), 110.0)
    assert standing.word == "dirty"
    for part in ("1.96G of its memory did not come back within 10s", "job 7", "nobody that can be seen from here"):
        assert part in standing.text
    assert "nvidia-smi --gpu-reset -i GPU-1" in standing.text and "foxqueue gpus --clear GPU-1" in standing.text
    standing = made.judge(look(256), 200.0)
    assert (standing.word, standing.seen.memory_free_mib) == ("free", 24_000 - 256)
    assert not made.returning


def test_what_was_there_before_need_not_go() -> None:
    assert after_a_run(before=200).judge(look(400), 101.0).word == "free"


def test_a_stranger_who_came_meanwhile_is_not_what_the_run_left() -> None:
    made = after_a_run()
    standing = made.judge(look(5000, "occupied", (ANN,)), 101.0)
    assert standing.word == "taken" and not made.returning
    grown = Stranger(10, 3000, "root", "Xorg")
    assert after_a_run().judge(look(3000, ignored=(grown,)), 101.0).word == "free"


def test_who_cannot_be_seen_is_named_by_number() -> None:
    seen = look(5000, "occupied", (Stranger(4711, 5000),), pids_known=False)
    assert "pid 4711" in after_a_run().judge(seen, 111.0).text


def test_after_somebody_else_had_it_nothing_is_asked_of_the_last_run() -> None:
    made = after_a_run()
    made.forgive()
    assert made.judge(look(5000, "occupied"), 111.0).word == "taken"


def test_where_memory_is_not_told_the_processes_decide() -> None:
    made = Admission(GPU, 1, 10.0)
    made.take(look(None))
    made.claimed(look(None))
    made.ended(7, 100.0)
    standing = made.judge(look(None), 111.0)
    assert (standing.word, standing.seen.memory_free_mib) == ("free", None)
