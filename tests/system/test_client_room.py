"""Room in the queue, keys, parents and selections through the Python client; workers are played by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from queue_driver import Queue
from shell import Shell
from wait import until

from foxqueue import Client, InvalidInput, JobExists, JobGone, JobNotFound, PartlySubmitted, QueueFull
from foxqueue.submission import user


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], object]], Future[object]]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def waits_for_news(queue: Queue) -> bool:
    return any(client["cmd"] == "xread" for client in queue.broker.redis.client_list())


# Room


def test_a_full_queue_refuses_and_says_its_limit(fox: Client, queue: Queue) -> None:
    queue.broker.change_settings({"max_unfinished": "2", "max_unfinished_user": "1"}, "me")
    fox.submit(["true"])
    with pytest.raises(QueueFull, match=r"1 unfinished jobs of .*, at most 1") as caught:
        fox.enqueue("pkg.mod:f")
    with pytest.raises(InvalidInput, match="block 'yes' is not understood: give True or False"):
        fox.submit(["true"], block="yes")  # type: ignore[arg-type]
    assert (caught.value.limit, caught.value.current, caught.value.whose) == (1, 1, user())
    queue.broker.change_settings({"max_unfinished_user": None}, "me")
    with pytest.raises(PartlySubmitted, match="0 of 2 jobs were accepted") as partly:
        fox.submit_many([{"argv": ["true"]}] * 2)
    assert partly.value.exit_code == 75


@pytest.mark.parametrize("how", ["complete", "cancel"])
def test_who_waits_for_room_gets_it_when_a_job_has_ended(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], Future[object]], how: str
) -> None:
    queue.broker.change_settings({"max_unfinished": "2"}, "me")
    first, _ = fox.submit_many([{"argv": ["true"]}] * 2)
    worker = queue.worker()
    run = worker.claim()
    waiting = background(lambda: fox.submit(["true"], block=True).number)
    until(lambda: waits_for_news(queue), what="somebody who waits")
    queue.beat(run)
    assert not waiting.done()
    if how == "complete":
        queue.complete(run)
    else:
        queue.broker.cancel(2, "", "me")
    assert waiting.result(10) == 3
    assert first.number == 1


def test_room_is_given_to_one_at_a_time(
    fox: Client, queue: Queue, background: Callable[[Callable[[], object]], Future[object]]
) -> None:
    queue.broker.change_settings({"max_unfinished": "1"}, "me")
    fox.submit(["true"])

    def submit() -> int:
        with Client(fox.config.url, "test") as client:
            return client.submit(["true"], block=True).number

    results = [background(submit) for _ in range(4)]
    for number in range(1, 5):
        until(lambda number=number: queue.broker.redis.exists(queue.broker.keys.job(number)), what=f"job {number}")
        counts = queue.broker.redis.hvals(queue.broker.keys.unfinished)
        assert sum(map(int, counts)) == 1
        queue.broker.cancel(number, "", "me")
    numbers = sorted(str(result.result(20)) for result in results)
    assert numbers == ["2", "3", "4", "5"]


def test_block_on_the_command_line(shell: Shell, queue: Queue) -> None:
    queue.broker.change_settings({"max_unfinished": "1"}, "me")
    assert shell.fox("submit", "-q", "--", "true")[0] == "1\n"
    err = shell.fox("submit", "-q", "--", "true", code=75)[1]
    assert "the queue is full: 1 unfinished jobs in the queue, at most 1 (max_unfinished)" in err and "--block" in err
    process = shell.start("submit", "-q", "--block", "--", "true")
    until(lambda: waits_for_news(queue), what="somebody who waits")
    queue.broker.cancel(1, "", "me")
    out, told = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b"2\n")
    told = told.decode()
    full = "the queue is full (1 unfinished jobs in the queue, at most 1: max_unfinished)"
    assert told.startswith(f"foxqueue: {full}: waiting for room; Ctrl-C gives up\n") and "--block" not in told


# Keys


def test_a_unique_key_refuses_returns_or_replaces(fox: Client, queue: Queue) -> None:
    job = fox.submit(["a"], unique="k")
    with pytest.raises(JobExists, match="job 1 has the unique key 'k'") as caught:
        fox.submit(["b"], unique="k")
    assert (caught.value.number, caught.value.born, caught.value.key) == (1, job.born, "k")
    same = fox.submit(["b"], unique="k", if_exists="return")
    assert (same.number, same.command, same.is_new, job.is_new) == (1, ("a",), False, True)
    newer = fox.submit(["c"], unique="k", if_exists="replace")
    assert (newer.number, newer.state, job.refresh().state) == (2, "pending", "cancelled")
    assert fox.job(key="k").number == 2
    queue.complete(queue.worker().claim())
    assert fox.job(key="k").succeeded, "the newest, though it has ended"
    assert fox.submit(["d"], unique="k").number == 3


def test_a_key_that_nobody_has_is_no_job(fox: Client) -> None:
    with pytest.raises(JobNotFound, match="unique key 'k'"):
        fox.job(key="k")
    for wrong in ((), (1,)):
        with pytest.raises(InvalidInput, match="give the number of a job, or key="):
            fox.job(*wrong, **({"key": "k"} if wrong else {}))
    with pytest.raises(InvalidInput, match="is no text"):
        fox.job(key=1)  # type: ignore[arg-type]
    with pytest.raises(JobNotFound, match="there is no job of"):
        fox.last()


def test_many_with_keys_keep_their_order(fox: Client, queue: Queue) -> None:
    fox.submit(["old"], unique="b")
    requests = [{"argv": [name], "unique": name, "if_exists": "return"} for name in "abc"]
    jobs = fox.submit_many([{"argv": ["x"]}, *requests, {"argv": ["y"]}, {"argv": ["z"]}])
    assert [(job.number, job.command[0]) for job in jobs] == [
        (2, "x"),
        (3, "a"),
        (1, "old"),
        (4, "c"),
        (5, "y"),
        (6, "z"),
    ]
    with pytest.raises(PartlySubmitted, match="1 of 2 jobs were accepted") as caught:
        fox.submit_many([{"argv": ["x"]}, {"argv": ["y"], "unique": "a"}])
    assert isinstance(caught.value.__cause__, JobExists)


# Parents


def test_children_are_seen_as_they_were_judged(fox: Client, queue: Queue) -> None:
    parent = fox.submit(["true"])
    child = fox.submit(["true"], after=parent)
    assert (child.state, child.waiting_for) == ("blocked", "dependencies")
    later = fox.submit(["true"], delay="1h")
    assert later.state == "scheduled"
    parent.cancel()
    lost = fox.submit(["true"], after=parent)
    assert (lost.state, lost.reason) == ("cancelled", "dependency_failed")
    assert "job 1" in (lost.detail or "")
    assert child.refresh().state == "cancelled"


def test_unknown_parents_are_refused_before_anything_is_sent(fox: Client, queue: Queue) -> None:
    requests = [{"argv": ["true"]} for _ in range(250)]
    requests[240]["after"] = 999
    with pytest.raises(JobNotFound, match=r"requests\[240\]: there is no job 999"):
        fox.submit_many(requests)
    gone = fox.submit(["true"])
    queue.broker.redis.flushall()
    fox.submit(["true"])
    requests[240]["after"] = gone
    with pytest.raises(JobGone, match=r"requests\[240\]: job 1 is another job"):
        fox.submit_many(requests)
    assert len(fox.jobs()) == 1


def test_a_step_has_a_thousand_parents_at_most(fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = fox.submit_many([{"argv": ["true"]} for _ in range(600)])
    steps: list[int] = []
    enqueue_many = fox.broker.enqueue_many

    def counting(jobs: list[object], *more: object, **named: object) -> object:
        steps.append(len(jobs))
        return enqueue_many(jobs, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(fox.broker, "enqueue_many", counting)
    children = fox.submit_many(
        [{"argv": ["true"], "after": parents}, *({"argv": ["true"], "after": parents[:300]},) * 4]
    )
    assert steps == [2, 3]
    assert [job.parents_open for job in (job.refresh() for job in children)] == [600, 300, 300, 300, 300]


# Selections


def test_jobs_are_found_by_tags_and_group(fox: Client) -> None:
    fox.submit_many([{"argv": ["true"], "tags": {"n": str(at)}, "group": "ab"[at % 2]} for at in range(4)])
    assert [job.number for job in fox.jobs(group="a")] == [1, 3]
    assert [job.number for job in fox.jobs(group="b", tags={"n": None})] == [2, 4]
    assert [job.number for job in fox.jobs(tags={"n": "2"})] == [3]
    assert fox.last().number == 4
    with pytest.raises(InvalidInput, match="is not one: give scheduled"):
        fox.jobs(state="done")


def test_pause_and_resume_from_python(fox: Client, queue: Queue) -> None:
    assert fox.pause("repairs") and not fox.pause("repairs")
    job = fox.submit(["true"])
    assert job.refresh().waiting_for == "paused"
    assert queue.worker().ask().word != "ok"
    assert fox.resume() and not fox.resume()
    assert queue.worker("w2").claim().number == 1
