"""B8: a key that is used again: refused, the same job or another one, and never two runs mixed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from stack import Stack
from test_reports_lost import kill_run
from wait import until

from foxqueue import JobExists, NotRequeued

KEY = "train-7"


def work(stack: Stack, word: str, then: str = "true") -> tuple[str, ...]:
    """Say a word, leave it as the only file, and note whether something else ran under the key.

    TERM ends it when there is the file ``leave``.
    """
    busy, leave = stack.root / "busy", stack.root / "leave"
    script = (
        f"exec 2>/dev/null; trap 'while [ ! -e {leave} ]; do sleep 0.02; done; rmdir {busy}; exit 1' TERM; "
        f"mkdir {busy} || touch {stack.root}/overlap; "
        f'echo "$1"; echo "$1" >> "$FOXQUEUE_DIR/$1"; {then}; end=$?; rmdir {busy}; exit $end'
    )
    return ("sh", "-c", script, "sh", word)


def goes_on(stack: Stack, word: str, then: str = "true") -> tuple[str, ...]:
    """The same until the file ``go`` is there; TERM ends it after a while."""
    return work(stack, word, f"while [ ! -e {stack.root}/go ]; do sleep 0.02; done; {then}")


def submit(stack: Stack, command: tuple[str, ...], if_exists: str = "refuse", *flags: str) -> int:
    return stack.submit(*command, flags=("--unique", KEY, "--if-exists", if_exists, *flags))


def files(stack: Stack, number: int) -> dict[str, str]:
    """What lies in a job's FOXQUEUE_DIR."""
    return {path.name: path.read_text() for path in stack.home.glob(f"*/jobs/*/{number}-*/files/*")}


def said(stack: Stack, number: int) -> str:
    return stack.fox("logs", str(number)).stdout


def holder(stack: Stack) -> int:
    """The job that is found by the key."""
    return stack.api.job(key=KEY).number


def refused(stack: Stack, number: int) -> bool:
    """Whether both ways to ask name the job that has the key, and queue nothing."""
    before = [job.number for job in stack.api.jobs()]
    done = stack.fox("submit", "--unique", KEY, "--", "true", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"job {number} has the unique key '{KEY}'" in done.stderr
    with pytest.raises(JobExists, match=f"job {number} "):
        stack.api.submit(["true"], unique=KEY)
    return before == [job.number for job in stack.api.jobs()]


def test_b8_while_it_runs_it_is_refused_returned_or_replaced(running: Stack) -> None:
    """Replaced, the new one begins when the last process of the old run is gone, though a device is free."""
    first = submit(running, goes_on(running, "first"))
    until(lambda: said(running, first) == "first\n", 10, "its output")
    assert refused(running, first)
    assert submit(running, work(running, "lost"), "return") == first == holder(running)
    assert running.api.submit(["true"], unique=KEY, if_exists="return").number == first
    second = submit(running, work(running, "second"), "replace")
    assert second != first and holder(running) == second
    assert running.job(second)["state"] == "blocked"
    (running.root / "leave").touch()
    assert running.await_state(second, "succeeded")["losses"] == 0
    old = running.job(first)
    assert (old["state"], old["reason"]) == ("cancelled", "cancelled_by_user")
    assert not (running.root / "overlap").exists()
    for number, word in ((first, "first"), (second, "second")):
        assert (said(running, number), files(running, number)) == (f"{word}\n", {word: f"{word}\n"})
    assert len(running.events(second, "claim")) == 1
    assert free_again(running)


def free_again(stack: Stack) -> bool:
    """Whether the next one under the key is a job of its own."""
    number = submit(stack, work(stack, "next"))
    stack.await_state(number, "succeeded")
    return files(stack, number) == {"next": "next\n"}


@pytest.mark.parametrize("how", ["replaced", "cancelled"])
def test_b8_a_replacement_ends_while_the_first_run_still_goes(running: Stack, how: str) -> None:
    """It waits for that run, and is itself replaced, or cancelled by hand: the next one waits for that run too."""
    first = submit(running, goes_on(running, "first"))
    until(lambda: said(running, first) == "first\n", 10, "its output")
    second = running.api.submit(work(running, "second"), unique=KEY, if_exists="replace", cwd=running.work)
    if how == "cancelled":
        second.cancel()
    instead = "replace" if how == "replaced" else "refuse"
    third = running.api.submit(work(running, "third"), unique=KEY, if_exists=instead, cwd=running.work).number
    states = [running.job(number)["state"] for number in (first, second.number, third)]
    assert states == ["running", "cancelled", "blocked"]
    (running.root / "leave").touch()
    assert running.await_state(third, "succeeded")["attempts"] == 1
    assert running.await_state(first, "cancelled")["reason"] == "cancelled_by_user"
    assert not running.events(second.number, "claim") and files(running, third) == {"third": "third\n"}
    assert not (running.root / "overlap").exists()


def test_b8_replaced_when_its_worker_is_dead(stack: Stack) -> None:
    """Nobody knows yet what became of the first run: the new job waits until it is told, though a device is free."""
    stack.serve(60_000)
    two = ("--simulate", "2x24G")
    stack.start_worker("sim:0", *two)
    first = submit(stack, goes_on(stack, "first"))
    until(lambda: said(stack, first) == "first\n", 10, "its output")
    stack.start_worker("sim:1", *two)
    stack.await_state(stack.queue("true"), "succeeded")
    kill_run(stack, first)
    (stack.root / "busy").rmdir()
    second = submit(stack, work(stack, "second"), "replace")
    stack.await_state(stack.queue("true"), "succeeded")
    assert [stack.job(number)["state"] for number in (first, second)] == ["running", "blocked"]
    stack.start_worker("sim:0", *two)
    lost = stack.await_state(first, "cancelled")
    assert (lost["reason"], lost["losses"], len(stack.events(first, "claim"))) == ("cancelled_by_user", 1, 1)
    assert stack.await_state(second, "succeeded")["attempts"] == 1
    assert (files(stack, first), files(stack, second)) == ({"first": "first\n"}, {"second": "second\n"})


@pytest.mark.parametrize("flags", [("--hold",), ("--delay", "1h"), ()], ids=["held", "delayed", "between attempts"])
def test_b8_while_it_waits_it_is_refused_returned_or_replaced(running: Stack, flags: tuple[str, ...]) -> None:
    """Also between two attempts: a job that will be tried again has not ended."""
    waits = flags or ("--retries", "1", "--retry-delay", "1h")
    first = submit(running, work(running, "first", "true" if flags else "exit 3"), "refuse", *waits)
    if not flags:
        running.await_state(first, "scheduled")
        (running.root / "busy").rmdir()
    assert refused(running, first)
    assert submit(running, ("true",), "return") == first
    second = submit(running, work(running, "second"), "replace")
    running.await_state(second, "succeeded")
    assert running.job(first)["state"] == "cancelled"
    assert (said(running, second), files(running, second)) == ("second\n", {"second": "second\n"})
    assert files(running, first) == ({} if flags else {"first": "first\n"})


def test_b8_after_success_the_next_is_a_job_of_its_own(running: Stack) -> None:
    first = running.api.enqueue("math:sqrt", (9,), unique=KEY, cwd=running.work)
    assert first.result(timeout=20) == 3.0
    second = running.api.enqueue("math:sqrt", (16,), unique=KEY, cwd=running.work, if_exists="return")
    assert second.number != first.number and second.result(timeout=20) == 4.0
    assert (first.result(), holder(running)) == (3.0, second.number)
    done = running.fox("requeue", str(first.number), check=False)
    assert done.returncode == 1 and "it is succeeded" in done.stderr
    assert first.refresh().result() == 3.0


def test_b8_a_failed_one_comes_back_only_when_the_key_is_free(running: Stack) -> None:
    """Its own files and output stay its own; what it returned before is gone, and nothing of the other is there."""
    first = submit(running, work(running, "first", f"[ -e {running.root}/good ]"))
    running.await_state(first, "failed")
    second = submit(running, goes_on(running, "second"))
    assert second != first and holder(running) == second
    until(lambda: said(running, second) == "second\n", 10, "its output")
    done = running.fox("requeue", str(first), check=False)
    assert done.returncode == 1 and f"its unique key is job {second}'s" in done.stderr
    with pytest.raises(NotRequeued, match=str(second)):
        running.api.job(first).requeue()
    assert running.job(first)["state"] == "failed"
    (running.root / "go").touch()
    running.await_state(second, "succeeded")
    (running.root / "good").touch()
    running.fox("requeue", str(first))
    again = running.await_state(first, "succeeded")
    assert (again["attempts"], again["losses"], again["exit_code"]) == (1, 0, 0)
    assert holder(running) == first
    assert files(running, first) == {"first": "first\nfirst\n"}
    assert said(running, first) == "first\nfirst\n"
    assert (said(running, second), files(running, second)) == ("second\n", {"second": "second\n"})
    assert running.job(second)["state"] == "succeeded"
    assert not (running.root / "overlap").exists()


def test_b8_a_job_that_came_back_has_its_key_again(running: Stack) -> None:
    first = submit(running, goes_on(running, "first", f"[ -e {running.root}/good ]"))
    (running.root / "go").touch()
    running.await_state(first, "failed")
    (running.root / "go").unlink()
    running.fox("requeue", str(first))
    assert refused(running, first) and submit(running, ("true",), "return") == first
    (running.root / "good").touch()
    (running.root / "go").touch()
    running.await_state(first, "succeeded")
    assert free_again(running)


@pytest.mark.parametrize("how", ["refuse", "return", "replace"])
def test_b8_many_at_once_leave_one(stack: Stack, how: str) -> None:
    """Eight clients ask for the same key at the same moment: one unfinished job has it."""
    stack.serve()
    start = Barrier(8)

    def ask(word: int) -> int:
        with stack.client() as fox:
            start.wait(20)
            try:
                return fox.submit(["echo", str(word)], unique=KEY, if_exists=how).number
            except JobExists as error:
                return -error.number

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    states = {job.number: job.state for job in stack.api.jobs()}
    alive = [number for number, state in states.items() if state != "cancelled"]
    assert alive == [holder(stack)]
    match how:
        case "refuse":
            assert (sorted(found), len(states)) == ([-alive[0]] * 7 + alive, 1)
        case "return":
            assert found == alive * 8 and len(states) == 1
        case "replace":
            assert sorted(found) == sorted(states) and len(states) == 8
