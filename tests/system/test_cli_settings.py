"""`foxqueue config` and `foxqueue requeue` as programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from queue_driver import Queue
from shell import Shell
from stack import Stack
from wait import until


def test_settings_are_shown_changed_and_audited(shell: Shell, queue: Queue) -> None:
    out, _ = shell.fox("config", "get")
    assert "retain_failed_count" in out and "90d" in out and "priority.dqn" in out
    assert shell.fox("config", "get", "aging")[0] == "4h\n"
    assert shell.fox("config", "set", "aging", "90m")[0] == "aging = 90m\n"
    assert shell.fox("config", "get", "aging")[0] == "90m\n"
    found = json.loads(shell.fox("config", "get", "--json")[0])
    assert (found["aging"], found["max_losses"], found["lease"], found["schema"]) == ("90m", "3", "15s", "2")
    assert shell.fox("config", "set", "aging", "default")[0] == "aging = 4h\n"
    events = [fields[b"set"] for _, fields in queue.broker.redis.xrange(queue.broker.keys.events)]
    assert events == [b"aging_us=5400000000", b"aging_us="]


def test_a_setting_that_is_not_possible_changes_nothing(shell: Shell, queue: Queue) -> None:
    shell.fox("config", "get")
    before = queue.snapshot()
    for words in (("aging", "never"), ("colour", "red"), ("priority.x", "11"), ("lease", "1s"), ("priority.", "1")):
        assert (
            "give" in shell.fox("config", "set", *words, code=2)[1]
            or "write" in shell.fox("config", "set", *words, code=2)[1]
        )
    assert "there is no setting" in shell.fox("config", "get", "colour", code=2)[1]
    assert queue.snapshot() == before


def test_a_priority_goes_by_the_model_type(shell: Shell, queue: Queue) -> None:
    assert shell.fox("config", "get", "priority.new")[0] == "medium\n"
    shell.fox("config", "set", "priority.New", "9")
    assert shell.fox("config", "get", "priority.new")[0] == "9\n"
    asked = [("--model-type", "NEW"), ("--model-type", "dqn"), ("--model-type", "TLOB"), ("--model-type", "what"), ()]
    found = [shell.json("submit", *flags, "--", "true")["priority"] for flags in asked]
    assert found == [9, 8, 2, 5, 5]
    assert shell.json("submit", "--model-type", "new", "-p", "low", "--", "true")["priority"] == 2


def test_requeue_says_for_each_job_what_became_of_it(shell: Shell, queue: Queue) -> None:
    shell.fox("submit", "-q", "--", "true")
    run = queue.worker().claim()
    queue.fail(run, delay_ms=None)
    shell.fox("submit", "-q", "--", "true")
    out, err = shell.fox("requeue", "1", "2", "99", code=1)
    assert out == "1 pending\n"
    assert "job 2 cannot be requeued: it is pending, not failed or cancelled" in err and "there is no job 99" in err
    assert queue.job(1)["state"] == "pending"
    shell.fox("cancel", "1")
    assert shell.json("requeue", "1")[0]["state"] == "pending"
    assert "not the number of a job" in shell.fox("requeue", "x", code=2)[1]


def test_a_job_that_was_queued_again_runs_again_with_its_files(running: Stack, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    code = (
        "import os, sys, pathlib\n"
        "kept = pathlib.Path(os.environ['FOXQUEUE_DIR'], 'kept')\n"
        f"if not os.path.exists({str(flag)!r}): kept.write_text('x'); sys.exit(3)\n"
        "print('again', kept.read_text(), os.environ['FOXQUEUE_ATTEMPT'])"
    )
    number = running.queue(sys.executable, "-c", code)
    assert running.await_state(number, "failed")["exit_code"] == 3
    flag.touch()
    assert running.fox("requeue", str(number)).stdout == f"{number} pending\n"
    job = running.await_state(number, "succeeded")
    assert (job["attempts"], job["exit_code"]) == (1, 0)
    until(lambda: b"again x 1" in running.api.job(number).logs(), what="the output")
