"""Jobs that wait for others: what an end, a loss or a cancel of the parent means for them, however far away."""

from __future__ import annotations

import signal
import subprocess
from itertools import cycle
from typing import Any

import pytest
from stack import Stack, until_exists
from test_reports_lost import kill_run
from wait import until

from foxqueue import JobCancelled, JobNotFound

KINDS = ("after", "after_any", "after_failed")
FLAGS = tuple(f"--{kind.replace('_', '-')}" for kind in KINDS)
THREE = ("--simulate", "3x24G")


def family(stack: Stack, parent: int) -> dict[str, int]:
    """One child of each kind."""
    return {kind: stack.queue("true", **{kind: parent}) for kind in KINDS}


def children_of(stack: Stack, parent: int) -> dict[str, int]:
    """The same by command."""
    return {kind: stack.submit("true", flags=(flag, str(parent))) for kind, flag in zip(KINDS, FLAGS, strict=True)}


def states(stack: Stack, numbers: dict[str, int]) -> dict[str, str]:
    return {kind: stack.job(number)["state"] for kind, number in numbers.items()}


def blocked(stack: Stack, numbers: dict[str, int]) -> bool:
    return set(states(stack, numbers).values()) == {"blocked"}


def order(stack: Stack) -> list[tuple[str, int]]:
    """All events of jobs, oldest first."""
    entries: Any = stack.api.redis.xrange(stack.api.broker.keys.events)
    return [(fields[b"event"].decode(), int(fields[b"job"] or b"0")) for _, fields in entries]


def until_flag(stack: Stack, name: str, after: str) -> tuple[str, ...]:
    """A shell command that waits for a file and then does ``after``."""
    return ("sh", "-c", f"while [ ! -e {stack.root}/{name} ]; do sleep 0.02; done; {after}")


# --- N2: a parent that fails ----------------------------------------------------------------------------------


def test_n2_a_failure_cancels_all_that_follows_and_is_named_to_all_of_them(running: Stack) -> None:
    """Three generations wait for a job; it fails: who needed its success is told why, the others run."""
    root = running.submit(*until_flag(running, "flag", "exit 3"))
    child = running.submit("true", flags=("--after", str(root)))
    grandchild = running.submit("true", flags=("--after", f"{child}"))
    last = running.submit("true", flags=("--after", f"{grandchild}", "--after-any", f"{root}"))
    orphan = running.submit("true", flags=("--after-any", str(child)))
    undone = running.submit("true", flags=("--after-failed", str(child)))
    alarm = running.submit("true", flags=("--after-failed", str(root)))
    tidy = running.submit("true", flags=("--after-any", f"{root},{alarm}"))
    after_tidy = running.submit("true", flags=("--after", f"{tidy},{alarm}"))
    waits = running.show(last)
    assert (waits["state"], waits["waiting_for"]) == ("blocked", "dependencies")
    assert f"{root} (any end) and {grandchild} (succeeded)" in waits["detail"]
    (running.root / "flag").touch()
    failed = running.await_state(root, "failed")
    assert (failed["reason"], failed["exit_code"]) == ("exit_code", 3)
    of_root = f"job {root} failed (exit_code)"
    of_child = f"job {child} cancelled (dependency_failed: {of_root})"
    of_grandchild = f"job {grandchild} cancelled (dependency_failed: {of_child})"
    reasons = {child: of_root, grandchild: of_child, orphan: of_child, undone: of_child, last: of_grandchild}
    for number, why in reasons.items():
        done = running.await_state(number, "cancelled")
        assert (done["reason"], done["detail"], done["attempts"]) == ("dependency_failed", why, 0)
        assert not running.events(number, "claim")
    assert of_grandchild in running.fox("show", str(last)).stdout
    waited = running.fox("wait", str(last), check=False)
    assert waited.returncode == 1 and of_grandchild in waited.stdout + waited.stderr
    with pytest.raises(JobCancelled, match=f"job {child} cancelled"):
        running.api.job(last).result(timeout=10)
    for number in (alarm, tidy, after_tidy):
        running.await_state(number, "succeeded")
    started = [number for event, number in order(running) if event == "claim"]
    assert started == [root, alarm, tidy, after_tidy]


def test_n2_a_success_cancels_who_waited_for_a_failure(running: Stack) -> None:
    root = running.submit(*until_flag(running, "flag", "exit 0"))
    kinds = children_of(running, root)
    of_alarm = running.submit("true", flags=("--after-any", str(kinds["after_failed"])))
    (running.root / "flag").touch()
    for kind in ("after", "after_any"):
        running.await_state(kinds[kind], "succeeded")
    alarm = running.await_state(kinds["after_failed"], "cancelled")
    assert (alarm["reason"], alarm["detail"]) == ("dependency_failed", f"job {root} succeeded")
    done = running.await_state(of_alarm, "cancelled")
    assert done["detail"] == f"job {kinds['after_failed']} cancelled (dependency_failed: job {root} succeeded)"


def test_n2_a_child_of_a_job_that_has_ended_is_judged_at_once(running: Stack) -> None:
    """Accepted, and ended with the reason when it can never run."""
    failed, succeeded = running.queue("sh", "-c", "exit 3"), running.queue("true")
    running.await_state(failed, "failed")
    running.await_state(succeeded, "succeeded")
    late = children_of(running, failed)
    done = running.show(late["after"])
    assert (done["state"], done["reason"], done["detail"]) == (
        "cancelled",
        "dependency_failed",
        f"job {failed} failed (exit_code)",
    )
    for kind in ("after_any", "after_failed"):
        running.await_state(late[kind], "succeeded")
    late = children_of(running, succeeded)
    done = running.show(late["after_failed"])
    assert (done["state"], done["detail"]) == ("cancelled", f"job {succeeded} succeeded")
    for kind in ("after", "after_any"):
        running.await_state(late[kind], "succeeded")
    streamed = running.fox("submit", "--wait", "--after", f"{succeeded},{failed}", "--", "true", check=False)
    assert streamed.returncode == 1 and f"job {failed} failed (exit_code)" in streamed.stderr


def test_n2_a_parent_that_is_tried_again_has_not_ended(running: Stack) -> None:
    """It fails, succeeds at its second attempt, and only that counts, also for those that come in between."""
    marks = running.root / "marks"
    script = f"echo x >> {marks}; [ $FOXQUEUE_ATTEMPT = 2 ]"
    root = running.queue(*until_flag(running, "flag", script), retries=1, retry_delay="1s")
    kinds = family(running, root)
    (running.root / "flag").touch()
    running.await_state(root, "scheduled")
    late = family(running, root)
    for children in (kinds, late):
        running.await_state(children["after"], "succeeded")
        running.await_state(children["after_any"], "succeeded")
        assert running.await_state(children["after_failed"], "cancelled")["detail"] == f"job {root} succeeded"
    trail = order(running)
    ended = trail.index(("complete", root))
    assert trail.index(("fail", root)) < ended
    assert all(trail.index(("settle", number)) > ended for number in kinds.values())
    assert len(marks.read_text().split()) == 2


def test_n2_a_parent_that_is_queued_again_counts_anew(running: Stack) -> None:
    """Who was cancelled with it comes back by hand; who is new waits for its next end."""
    root = running.queue(*until_flag(running, "flag", f"test -e {running.root}/good"))
    child = running.queue("true", after=root)
    grandchild = running.queue("true", after=child)
    (running.root / "flag").touch()
    running.await_state(grandchild, "cancelled")
    (running.root / "flag").unlink()
    (running.root / "good").touch()
    alone = running.fox("requeue", str(child), check=False)
    assert alone.returncode == 1 and f"job {root} failed (exit_code)" in alone.stderr
    assert running.job(child)["state"] == "cancelled"
    running.fox("requeue", "--cascade", str(root))
    new = running.submit("true", flags=("--after", str(root)))
    running.await_state(root, "running")
    assert [running.job(number)["state"] for number in (child, grandchild, new)] == ["blocked"] * 3
    (running.root / "flag").touch()
    for number in (child, grandchild, new):
        done = running.await_state(number, "succeeded")
        assert (done["attempts"], len(running.events(number, "claim"))) == (1, 1)


# --- N3: a parent that is lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["successor", "another", "stopped"])
def test_n3_a_parent_that_runs_again_releases_nothing_before_its_end(stack: Stack, how: str) -> None:
    """Lost with its worker, as the device's next worker tells or another's sweep finds out; or given back."""
    stack.serve(2000 if how == "another" else 60_000)
    flag = stack.root / "flag"
    worker = stack.start_worker("sim:0", *THREE)
    root = stack.queue(*until_exists(flag))
    kinds = family(stack, root)
    if how == "stopped":
        stack.runner_of(root)
        stop_twice(stack, worker)
    else:
        kill_run(stack, root)
    assert blocked(stack, kinds)
    stack.start_worker("sim:1" if how == "another" else "sim:0", *THREE)
    until(lambda: len(stack.events(root, "claim")) == 2, 20, "its second run")
    assert blocked(stack, kinds)
    again = stack.await_state(root, "running")
    assert (again["attempts"], again["losses"]) == (1, 0 if how == "stopped" else 1)
    flag.touch()
    for kind in ("after", "after_any"):
        stack.await_state(kinds[kind], "succeeded")
    assert stack.await_state(kinds["after_failed"], "cancelled")["detail"] == f"job {root} succeeded"
    trail = order(stack)
    ended = trail.index(("complete", root))
    assert all(trail.index(("settle", number)) > ended for number in kinds.values())


def stop_twice(stack: Stack, worker: subprocess.Popen[bytes]) -> None:
    """Tell a worker to leave at once, with its job given back."""
    worker.terminate()
    until(lambda: "stopping: job" in stack.log("worker"), 10, "the first TERM taken")
    worker.terminate()
    assert worker.wait(20) == 0


def test_n3_a_parent_that_is_lost_for_good_has_failed(stack: Stack) -> None:
    """The third loss ends it: who waits for an end or a failure runs, who waits for success is told of the poison."""
    stack.serve(60_000)
    root = stack.queue("sh", "-c", "kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$)); sleep 300")
    kinds = family(stack, root)
    for _ in range(3):
        assert blocked(stack, kinds)
        assert stack.start_worker("sim:0", *THREE).wait(20) == -signal.SIGKILL
    assert blocked(stack, kinds)
    stack.start_worker("sim:0", *THREE)
    assert stack.await_state(root, "failed")["reason"] == "poison"
    for kind in ("after_any", "after_failed"):
        stack.await_state(kinds[kind], "succeeded")
    assert stack.await_state(kinds["after"], "cancelled")["detail"] == f"job {root} failed (poison)"


# --- N4: a parent that is not there, or never ran ---------------------------------------------------------------


def test_n4_a_parent_that_is_not_there_is_refused(quick: Stack) -> None:
    """Its own number, a later one, one that was purged: refused, and nothing is queued."""
    quick.fox("config", "set", "retain_finished", "1s")
    gone, kept = quick.queue("true"), quick.queue("false")
    until(lambda: [job.number for job in quick.api.jobs()] == [kept], 20, "the purge of the first job")
    quick.await_state(kept, "failed")
    before = quick.fox("ls", "--json").stdout
    for flag, number in zip(cycle(FLAGS), (gone, kept + 1, kept + 2, 10**12), strict=False):
        refused = quick.fox("submit", flag, f"{kept},{number}", "--", "true", check=False)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert f"there is no job {number} to wait for" in refused.stderr
        for kind in KINDS:
            with pytest.raises(JobNotFound, match=str(number)):
                quick.queue("true", **{kind: number})
    with pytest.raises(JobNotFound):
        quick.api.submit_many([{"argv": ["true"]}, {"argv": ["true"], "after": kept + 2}])
    assert quick.fox("ls", "--json").stdout == before
    child = quick.submit("false", flags=("--after-any", str(kept)))
    assert child == kept + 1  # a refused one takes no number
    quick.await_state(child, "failed")


@pytest.mark.parametrize("how", ["held", "running", "expired"])
def test_n4_a_parent_that_was_cancelled_or_expired_counts_for_nobody(quick: Stack, how: str) -> None:
    """Not as an end, nor as a failure; neither for those that wait then nor for those that come later."""
    flags = {"held": ("--hold",), "running": (), "expired": ("--hold", "--expires", "800ms")}[how]
    root = quick.submit("sleep", "300", flags=flags)
    if how == "running":
        quick.await_state(root, "running")
    kinds = children_of(quick, root)
    if how != "expired":
        assert blocked(quick, kinds)
        quick.fox("cancel", str(root))
    quick.await_state(root, "cancelled")
    reason = "expired" if how == "expired" else "cancelled_by_user"
    late = children_of(quick, root)
    for number in (*kinds.values(), *late.values()):
        done = quick.await_state(number, "cancelled")
        assert (done["reason"], done["detail"]) == ("dependency_failed", f"job {root} cancelled ({reason})")
        assert not quick.events(number, "claim")
    quick.await_state(quick.queue("true"), "succeeded")
