"""What a job finds in its environment: the submitter's variables, those given by hand, and the worker's, which win."""

from __future__ import annotations

from pathlib import Path

from foxqueue.broker import Claimed
from foxqueue.environment import job_environment
from foxqueue.gpu import Device


def environment(captured: dict[str, str], given: dict[str, str], kind: str = "simulated") -> dict[str, str]:
    claimed = Claimed("life", 7, "30", "10", 2, 0, 0, "", b"")
    device = Device("SIM-1", 1, "simulated", kind, 1024)  # type: ignore[arg-type]
    return job_environment(
        captured, given, claimed, device, cwd="/the/job", visible="index", mark="life/7-10/30", files=Path("/files")
    )


def test_what_was_given_by_hand_beats_what_was_captured() -> None:
    found = environment({"A": "1", "B": "1"}, {"B": "2"})
    assert (found["A"], found["B"]) == ("1", "2")


def test_the_workers_variables_win() -> None:
    taken = dict.fromkeys(("FOXQUEUE_RUN", "CUDA_VISIBLE_DEVICES", "FOXQUEUE_JOB_ID", "PWD"), "mine")
    found = environment(taken, taken)
    assert found["FOXQUEUE_RUN"] == "life/7-10/30"
    assert (found["FOXQUEUE_JOB_ID"], found["FOXQUEUE_ATTEMPT"], found["FOXQUEUE_FENCE"]) == ("7", "2", "30")
    assert found["CUDA_VISIBLE_DEVICES"] != "mine"
    assert found["FOXQUEUE_DIR"] == "/files"


def test_pwd_is_where_the_job_runs() -> None:
    assert environment({}, {})["PWD"] == "/the/job"
    assert environment({"PWD": "/the/submitter"}, {})["PWD"] == "/the/job"


def test_a_cpu_slot_is_no_gpu() -> None:
    assert environment({}, {}, "cpu")["FOXQUEUE_GPUS"] == ""
