"""Python calls from the script that makes them to the value that it gets, through real workers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from stack import Stack

from foxqueue import JobCancelled, JobFailed, WaitTimeout
from foxqueue.submission import IMPORTING
from workers import call, record

SCRIPT = """
import sys
from foxqueue import Client, JobFailed
import helper

def train(lr, epochs=1):
    print("training", lr)
    return {"lr": lr, "loss": helper.loss(lr) * epochs}

def breaks():
    raise ValueError("no such layer")

if __name__ == "__main__":
    with Client() as fox:
        jobs = [fox.enqueue(train, (lr,), {"epochs": 2}, name=f"lr {lr}") for lr in (0.1, 0.2)]
        print([job.result(60) for job in jobs])
        try:
            fox.enqueue(breaks).result(60)
        except JobFailed as error:
            print(error.reason, error.exception_type, error.exception_message, "no such layer" in error.traceback)
        many = fox.submit_many([{"function": train, "args": [0.5]}, {"argv": ["true"]}])
        print([job.result(60) for job in many])
"""

ENDLESS = """
from foxqueue import Client

def work():
    return 1

with Client(home=HOME) as fox:
    print(fox.enqueue(work).number)
"""


def script(stack: Stack, text: str) -> subprocess.CompletedProcess[str]:
    path = stack.work / "study.py"
    path.write_text(text)
    (stack.work / "helper.py").write_text("def loss(lr):\n    return 1 / lr\n")
    return subprocess.run(
        [sys.executable, path.name], cwd=stack.work, env=stack.environ, capture_output=True, text=True, timeout=100
    )


def test_a_script_gets_the_values_of_its_own_functions(running: Stack) -> None:
    done = script(running, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "[{'lr': 0.1, 'loss': 20.0}, {'lr': 0.2, 'loss': 10.0}]",
        "exception ValueError no such layer True",
        "[{'lr': 0.5, 'loss': 2.0}, None]",
    ]
    shown = running.fox("show", "3").stdout
    assert "study.py:breaks()" in shown and "ValueError: no such layer" in shown
    assert running.show(1)["command"] == ["study.py:train(0.1, epochs=2)"]
    assert b"training 0.1" in running.api.job(1).logs()


def test_a_module_beside_the_script_is_found_from_another_directory(running: Stack) -> None:
    (running.work / "scripts").mkdir()
    (running.work / "scripts" / "beside_it.py").write_text("def work():\n    return 'found'\n")
    path = running.work / "scripts" / "run.py"
    path.write_text(
        "import beside_it\nfrom foxqueue import Client\nif __name__ == '__main__':\n"
        "    with Client() as fox:\n        print(fox.enqueue(beside_it.work).result(60))\n"
    )
    done = subprocess.run(
        [sys.executable, "scripts/run.py"], cwd=running.work, env=running.environ, capture_output=True, text=True
    )
    assert done.stdout == "found\n", done.stderr


def test_a_script_that_enqueues_while_it_is_imported_is_refused_once(running: Stack) -> None:
    """Each of its jobs would else import it, and enqueue the next one."""
    assert (IMPORTING, record.REPORT_NAME) == (call.IMPORTING, call.REPORT_NAME)  # it can import neither
    done = script(running, ENDLESS.replace("HOME", repr(str(running.home))))
    assert done.stdout == "1\n", done.stderr
    job = running.await_state(1, "failed")
    assert job["reason"] == "exception" and "while a job imports it" in job["detail"]
    assert running.api.stats()["queued_jobs"] == 0 and running.fox("show", "2", check=False).returncode == 1


def test_a_value_that_does_not_come(running: Stack) -> None:
    fox = running.api
    slow = fox.enqueue("time:sleep", [600], cwd=running.work)
    with pytest.raises(WaitTimeout):
        slow.result(0.2)
    slow.cancel()
    with pytest.raises(JobCancelled, match="cancelled"):
        slow.result(60)
    with pytest.raises(JobFailed) as caught:
        fox.enqueue("no_module_of_that_name:work", cwd=running.work).result(60)
    assert caught.value.exception_type == "ModuleNotFoundError"
    with pytest.raises(JobFailed) as caught:
        fox.enqueue("threading:Lock", cwd=running.work).result(60)
    assert caught.value.reason == "bad_result" and "lock" in str(caught.value)
    with pytest.raises(JobFailed) as caught:
        fox.enqueue("builtins:bytes", [2_000_000], cwd=running.work).result(60)
    assert caught.value.reason == "bad_result" and "1" in caught.value.detail
