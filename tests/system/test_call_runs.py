"""A Python call returns its value, raises its exception, or says why it did neither; its worker outlives all of it."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pytest
from callers import Caller
from stack import Stack, ended
from wait import until

from foxqueue.processes import ProcessId

CALLED = Path(__file__).parents[1] / "called"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One stack for all calls of this file."""
    with ended(Stack(tmp_path_factory.mktemp("calls"))) as stack:
        shutil.copy(CALLED / "calls.py", stack.work)
        (stack.work / "broken.py").write_text("import nothing_of_that_name\n")
        (stack.work / "malformed.py").write_text("def f(:\n")
        (stack.work / "leaves.py").write_text("import sys\nsys.exit(0)\n")
        stack.up()
        yield stack


@pytest.fixture
def caller(served: Stack) -> Caller:
    return Caller(served, "calls")


@pytest.fixture
def of_script(served: Stack) -> Caller:
    return Caller(served, script=CALLED / "train.py")


# --- values --------------------------------------------------------------------------------------------------


def test_arguments_and_values_come_through(caller: Caller) -> None:
    moments = [datetime(2026, 11, 30, 1, 2, 3, 4), datetime(2026, 11, 30, tzinfo=UTC)]
    given: list[Any] = [1, -(2**70), 0.1, math.inf, None, True, "ü🦊", b"\xff\0", *moments, (1, (2,)), {"a": [1]}]
    args, kwargs = caller.value("echo", *given, kwargs={"lr": math.nan, "array": numpy.arange(6.0).reshape(2, 3)})
    assert args == [*given[:-2], [1, [2]], {"a": [1]}]
    assert [type(value) for value in args[:8]] == [type(value) for value in given[:8]]
    assert math.isnan(kwargs["lr"])
    assert kwargs["array"].dtype == "float64"
    assert kwargs["array"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_method_of_a_class(caller: Caller) -> None:
    assert caller.value("Group.method", 4) == 8


def test_surroundings(caller: Caller) -> None:
    found = caller.value("where")
    work = str(caller.stack.work)
    assert (found["cwd"], found["pwd"], found["path"]) == (work, work, [work])
    assert (found["argv"], found["python"], found["main"]) == (["calls"], sys.executable, None)
    assert found["importing"] == ["calls", None]


def test_an_interpreter_that_is_not_here_is_replaced(caller: Caller) -> None:
    assert caller.value("where", python="/no/such/python")["python"] == sys.executable
    assert "no interpreter '/no/such/python' on this machine" in caller.stack.log("up")


def test_the_submitters_interpreter_is_taken(caller: Caller, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    job = caller.failure("where", python=python)
    assert job["reason"] == "launch_error"
    assert job["detail"] == f"{python} has no msgpack, which calls need: install it there (pip install msgpack)"
    packages = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    import msgpack

    (packages / "msgpack").symlink_to(Path(msgpack.__file__).parent)
    assert caller.value("where", python=python)["python"] == python


def test_a_value_outlives_a_crash_on_the_way_out(caller: Caller) -> None:
    number = caller.queue("crash_after")
    job = caller.ended(number)
    assert (job["state"], caller.value_of(number)) == ("succeeded", "done")
    assert caller.stack.api.job(number).view.result["signal"] == signal.SIGSEGV
    assert caller.output(number) == "almost"


@pytest.mark.parametrize("code", [0, None, 256])
def test_a_polite_exit_is_a_return(caller: Caller, code: int | None) -> None:
    assert caller.value("leave", code) is None


@pytest.mark.parametrize("name", ["fork", "fork_and_fail"])
def test_a_fork_that_comes_by_reports_nothing(caller: Caller, name: str) -> None:
    assert caller.value(name) == "parent"


def test_a_function_that_closes_all_descriptors(caller: Caller) -> None:
    assert caller.value("closes_everything") == 20


def test_output_can_be_followed_and_is_in_before_the_end(caller: Caller, tmp_path: Path) -> None:
    number = caller.queue("talk", "hello 🦊", str(tmp_path / "flag"))
    until(lambda: "hello 🦊\n" in caller.output(number), what="a line that nobody flushed")
    (tmp_path / "flag").touch()
    caller.ended(number)
    assert (caller.value_of(number), caller.output(number)) == ("hello 🦊", "hello 🦊\n")


@pytest.mark.parametrize(("how", "reason"), [("return", "exit_code"), ("raise", "exception"), ("crash", "signal")])
def test_nothing_of_a_call_outlives_it(caller: Caller, tmp_path: Path, how: str, reason: str) -> None:
    """D2: its device is given to the next job only then."""
    trail = tmp_path / "trail"
    number = caller.queue("leaves_one_behind", str(trail), how)
    until(trail.exists, what="the daemon")
    daemon = ProcessId.of(int(trail.read_text()))
    assert daemon is not None
    assert caller.ended(number)["reason"] == reason
    assert not daemon.alive()


def test_a_program_that_waits_for_its_own_function(served: Stack) -> None:
    """As a user writes it: the script defines, submits and waits, and is imported by the job."""
    text = "import foxqueue\ndef square(n):\n    return n * n\n"
    main = "if __name__ == '__main__':\n    print(foxqueue.Client().enqueue(square, [7]).result(20))\n"
    (served.work / "program.py").write_text(text + main)
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=served.work, env=served.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "49\n"), done.stderr


def test_nothing_is_pickled() -> None:
    """P3: who reads results needs no class of who wrote them, and runs none of its code."""
    root = Path(__file__).parents[2]
    code = [path for name in ("foxqueue", "workers") for path in (root / name).rglob("*.py")]
    importing = re.compile(r"^\s*(?:import|from)\s+(?:pickle|cPickle|dill|cloudpickle|marshal|shelve)\b", re.MULTILINE)
    assert [path.name for path in code if importing.search(path.read_text())] == []
    assert len(code) > 60


# --- a script's functions ------------------------------------------------------------------------------------


def test_a_function_of_a_script(of_script: Caller) -> None:
    assert of_script.value("main_function", 3) == [3, "beside", "__mp_main__", "train.py"]


def test_a_script_under_multiprocessing(of_script: Caller) -> None:
    assert of_script.value("parallel") == [2, 4]


def test_an_exception_of_a_script(of_script: Caller) -> None:
    assert of_script.failure("fails")["detail"] == "__main__.Mine: mine"


def test_a_script_that_is_not_here(served: Stack) -> None:
    job = Caller(served, script=Path("/no/such/train.py")).failure("f")
    assert job["reason"] == "exception"
    assert "script /no/such/train.py is not on this machine" in job["detail"]


# --- exceptions ----------------------------------------------------------------------------------------------


def test_an_exception_is_kept_as_text(caller: Caller) -> None:
    number = caller.queue("fail", "no\nway 🦊")
    job = caller.ended(number)
    assert (job["state"], job["reason"], job["exit_code"]) == ("failed", "exception", 1)
    assert job["detail"] == "ValueError: no way 🦊"
    raised = caller.raised(number)
    assert (raised["type"], raised["message"]) == ("ValueError", "no\nway 🦊")
    assert raised["traceback"] == caller.output(number)
    lines = raised["traceback"].splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{caller.stack.work}/calls.py", line 49, in fail'
    assert lines[-2:] == ["ValueError: no", "way 🦊"]


def test_an_exception_with_a_class_of_its_own_mind(caller: Caller) -> None:
    job = caller.failure("odd")
    assert job["detail"] == "calls.Odd: (its text cannot be shown: KeyError)"
    assert "in odd" in caller.raised(job["number"])["traceback"]


def test_causes_are_told(caller: Caller) -> None:
    raised = caller.raised(caller.failure("chained")["number"])
    assert "KeyError: 'missing'" in raised["traceback"]
    assert "direct cause" in raised["traceback"]


def test_a_long_exception_is_cut(caller: Caller) -> None:
    job = caller.failure("fail", "x" * 100_000 + "end")
    raised = caller.raised(job["number"])
    assert (len(raised["message"]), len(raised["traceback"])) == (4096, 16384)
    assert raised["traceback"].endswith("xend\n")
    assert len(job["detail"]) == 400


@pytest.mark.parametrize(("name", "kind"), [("recursion", "RecursionError"), ("memory", "MemoryError")])
def test_no_stack_and_no_memory(caller: Caller, name: str, kind: str) -> None:
    job = caller.failure(name)
    assert (job["reason"], job["detail"].partition(":")[0]) == ("exception", kind)


@pytest.mark.parametrize(
    ("module", "function", "words"),
    [
        ("nowhere", "f", "ModuleNotFoundError: no module 'nowhere' for "),
        ("nowhere.deeper", "f", "ModuleNotFoundError: no module 'nowhere' for "),
        ("broken", "f", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
        ("malformed", "f", "SyntaxError: "),
        ("calls", "missing", "AttributeError: module calls has no missing here"),
        ("calls", "Group.missing", "AttributeError: module calls has no Group.missing here"),
        ("calls", "not_a_function", "TypeError: not_a_function of module calls is no function but int"),
        ("calls", "Group.method", "TypeError: Group.method() missing 1 required positional argument: 'x'"),
    ],
)
def test_what_cannot_be_called(served: Stack, module: str, function: str, words: str) -> None:
    caller = Caller(served, module)
    job = caller.failure(function)
    assert (job["reason"], job["exit_code"]) == ("exception", 1)
    assert words in job["detail"]
    assert "call.py" not in caller.output(job["number"])


# --- ends that return nothing --------------------------------------------------------------------------------


def test_exit_codes_and_signals_are_those_of_commands(caller: Caller) -> None:
    job = caller.failure("leave", 3)
    assert (job["reason"], job["exit_code"], job["detail"]) == ("exit_code", 3, "exited with 3")
    job = caller.failure("leave", "sorry")
    assert (job["exit_code"], caller.output(job["number"])) == (1, "sorry\n")
    assert caller.failure("vanish", 4)["exit_code"] == 4
    assert caller.failure("die", 9)["detail"].startswith("killed by SIGKILL")
    job = caller.failure("interrupt")
    assert (job["reason"], job["detail"]) == ("signal", "killed by SIGINT, not by the queue")
    assert "call.py" not in caller.output(job["number"])


def test_an_end_without_a_return_is_no_success(caller: Caller, served: Stack) -> None:
    job = caller.failure("vanish", 0)
    assert (job["reason"], job["exit_code"]) == ("bad_result", 0)
    assert "without returning" in job["detail"]
    assert Caller(served, "leaves").failure("f")["reason"] == "bad_result"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a_lambda", "result['model'] is a function"),
        ("a_module", "result[1] is a module"),
        ("a_set", "result is a set"),
        ("holds_itself", "holds itself"),
    ],
)
def test_what_cannot_be_packed(caller: Caller, name: str, words: str) -> None:
    job = caller.failure(name)
    assert (job["reason"], job["exit_code"]) == ("bad_result", 1)
    assert words in job["detail"]
    assert words in caller.output(job["number"])


def test_a_large_value(caller: Caller) -> None:
    assert len(caller.value("large", 1024 * 1024 - 5)) == 1024 * 1024 - 5
    job = caller.failure("large", 1024 * 1024 - 4)
    assert job["reason"] == "bad_result"
    assert job["detail"].startswith("what it returned has 1,048,577 bytes, and 1,048,576 are allowed")
    assert caller.failure("large", 100_000_000)["reason"] == "bad_result"


def test_the_limit_is_the_namespaces(caller: Caller) -> None:
    broker = caller.stack.api.broker
    broker.change_settings({"max_result_bytes": "2000"}, "test")
    try:
        assert len(caller.value("large", 1900)) == 1900
        assert "2,000 are allowed" in caller.failure("large", 2000)["detail"]
    finally:
        broker.change_settings({"max_result_bytes": None}, "test")


def test_no_room_for_the_value(caller: Caller) -> None:
    assert len(caller.value("no_more_room", 60_000)) == 60_000
    job = caller.failure("no_more_room", 70_000)
    assert job["reason"] == "bad_result"
    assert job["detail"] == "what it returned (70,005 bytes) could not be stored: File too large"
    job = caller.failure("fails_without_room")
    assert job["detail"].startswith("ValueError: yyy")


def test_arguments_that_cannot_be_read(caller: Caller) -> None:
    for data in (b"\xc1", b"\xc7\x00\x63"):
        job = caller.failure("echo", data=data)
        assert job["reason"] == "bad_payload"
        assert "its arguments cannot be read" in job["detail"]


def test_a_spec_that_cannot_be_read(served: Stack) -> None:
    assert Caller(served).failure("f")["reason"] == "bad_payload"


# --- what counts more than a return --------------------------------------------------------------------------


def test_a_cancel_and_a_time_limit_win_over_a_value(caller: Caller, tmp_path: Path) -> None:
    number = caller.queue("goes_on", str(tmp_path / "cancelled"))
    until(lambda: "up" in caller.output(number), what="its start")
    caller.stack.api.job(number).cancel()
    job = caller.ended(number)
    assert (job["state"], caller.stack.api.inspector.value(number)) == ("cancelled", None)
    job = caller.failure("goes_on", str(tmp_path / "limited"), time_limit_s=1.0)
    assert job["reason"] == "timeout"
    assert caller.stack.api.inspector.value(job["number"]) is None


def test_a_call_that_had_returned_before_its_worker_died(stack: Stack) -> None:
    """Given a call whose function has returned, when its worker is killed and it ends then, its value is accepted."""
    shutil.copy(CALLED / "calls.py", stack.work)
    stack.serve(15_000)
    caller, started, flag = Caller(stack, "calls"), stack.root / "started", stack.root / "flag"
    worker = stack.start_worker("sim:0", "--simulate", "1x24G")
    number = caller.queue("torn_down", str(started), str(flag))
    until(started.exists, 20, what="the end of the function")
    runner = stack.runner_of(number)
    os.kill(worker.pid, signal.SIGKILL)
    stack.exit_status(worker.pid)
    flag.touch()
    until(lambda: not runner.alive(), what="the runner's end")
    stack.start_worker("sim:0", "--simulate", "1x24G")
    assert caller.ended(number)["attempts"] == 1
    assert caller.value_of(number) == {"loss": 0.5}


@pytest.mark.parametrize("ended_by", ["worker", "runner", "both", "down"])
def test_a_call_that_had_returned_is_not_run_again_whatever_ends_its_interpreter(stack: Stack, ended_by: str) -> None:
    """Given a call that has returned and whose interpreter is not gone yet, when its run is ended: the value counts."""
    shutil.copy(CALLED / "calls.py", stack.work)
    up = stack.up("--simulate", "1x24G", workers=1)
    caller, started, never = Caller(stack, "calls"), stack.root / "started", stack.root / "never"
    number = caller.queue("torn_down", str(started), str(never))
    until(started.exists, 20, what="the end of the function")
    until(lambda: list(stack.home.glob("*/jobs/*/*/*/return.msgpack")), 10, "its report")
    worker, runner = stack.worker_of(number), stack.runner_of(number)
    if ended_by in ("worker", "both"):
        worker.send(signal.SIGKILL)
    if ended_by in ("runner", "both"):
        runner.send(signal.SIGKILL)
    if ended_by == "down":
        for _ in range(2):  # the second TERM leaves no time to end by itself
            up.send_signal(signal.SIGTERM)
            until(lambda: "ending" in stack.log("up"), 10, "the end to begin")
        up.wait(60)
        stack.up("--simulate", "1x24G", workers=1)
    job = caller.ended(number)
    assert (job["state"], job["attempts"]) == ("succeeded", 1)
    assert caller.value_of(number) == {"loss": 0.5}
    assert len(stack.events(number, "claim")) == 1


def test_a_call_that_was_cut_off_runs_again(stack: Stack) -> None:
    shutil.copy(CALLED / "calls.py", stack.work)
    stack.up("--simulate", "1x24G", workers=1)
    caller, flag = Caller(stack, "calls"), stack.root / "flag"
    number = caller.queue("talk", "again", str(flag))
    until(lambda: "again" in caller.output(number), what="its start")
    first: ProcessId = stack.worker_of(number)
    first.send(signal.SIGKILL)
    until(lambda: stack.job(number)["losses"] == 1, 20, what="the loss")
    flag.touch()
    caller.ended(number)
    assert caller.value_of(number) == "again"
