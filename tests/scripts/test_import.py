"""The script that puts a namespace back: in steps that may be cut off, repeated and begun again."""

from __future__ import annotations

import io

import pytest
from archives import HOUR_MS, Steps, exported, imported, new_job, put, put_all_kinds, records, target
from cutter import Cutter
from key_owners import unexplained
from queue_driver import Queue
from servers import RealServer
from test_full_server import full

from foxqueue.archive import Writer, open_archive
from foxqueue.broker import Broker
from foxqueue.errors import ServerRefused, ServerUnavailable
from foxqueue.importing import ImportStopped, _Import
from foxqueue.messages import Reply
from foxqueue.scripts import Value, load

__all__ = ["target"]


def words(replies: list[Reply]) -> list[str]:
    return [reply.word for reply in replies]


def test_what_is_put_back_is_what_was_exported(queue: Queue, target: Queue) -> None:
    """But for jobs that ran; a second trip changes nothing at all."""
    jobs = put_all_kinds(queue)
    before = queue.snapshot()
    data = exported(queue)
    assert queue.snapshot() == before, "an export changes nothing"
    done = imported(target, data)
    assert (done.jobs, done.given_back, done.said) == (17, 1, [])
    first, second = records(data), records(exported(target))
    ran = {("job", jobs["running"]), ("job", jobs["stopping"]), ("group", "lr-sweep")}
    assert first.keys() == second.keys()
    assert {key for key in first if first[key] != second[key]} == ran
    third = Queue(queue.broker.connection.url, "third")
    imported(third, exported(target))
    assert records(exported(third)) == second
    third.broker.close()


def test_a_job_that_ran_waits_again_at_its_old_place(queue: Queue, target: Queue) -> None:
    jobs = put_all_kinds(queue)
    before = records(exported(queue))["job", jobs["running"]].fields
    imported(target, exported(queue))
    keys, redis = target.broker.keys, target.broker.redis
    state, rank, attempts, fence = redis.hmget(keys.job(jobs["running"]), "state", "rank", "attempts", "fence")
    assert (state, rank, attempts, fence) == (b"pending", before[b"rank"], b"0", before[b"fence"])
    assert redis.hget(keys.job(jobs["stopping"]), "state") == b"cancelled"
    for key in (keys.running, keys.granted, keys.gpus, keys.workers, keys.claims, keys.lease("GPU-1")):
        assert not redis.exists(key), key


def test_counts_are_those_of_the_jobs(queue: Queue, target: Queue) -> None:
    put_all_kinds(queue)
    imported(target, exported(queue))
    keys, redis = target.broker.keys, target.broker.redis
    found: dict[bytes, int] = {}
    for number in range(1, 18):
        state, user = redis.hmget(keys.job(number), "state", "user")
        if state in (b"pending", b"scheduled", b"blocked"):
            found[user] = found.get(user, 0) + 1
    assert {user: int(count) for user, count in redis.hgetall(keys.unfinished).items()} == found
    group = redis.hmget(keys.group("lr-sweep"), "total", "running", "cancelled", "succeeded", "failed")
    assert group == [b"5", None, b"1", None, None]
    assert redis.zcard(keys.members("lr-sweep")) == 5
    assert redis.hgetall(keys.unique) == {b"key of old": b"2", b"key": b"13"}
    assert unexplained(redis, keys) == []


def test_numbers_and_fences_go_on_behind_those_of_the_file(queue: Queue, target: Queue) -> None:
    put_all_kinds(queue)
    ahead = queue.broker.server_time_ms() * 1000 + 1000 * HOUR_MS
    queue.broker.redis.set(queue.broker.keys.clock, ahead)
    queue.enqueue()
    run = queue.worker("w9", "GPU-9").claim()
    imported(target, exported(queue))
    number, born = target.enqueue_born()
    assert number == 19
    assert int(born) > int(run.fence) > ahead
    assert int(target.worker(shapes=("g1",)).claim().fence) > int(born)


def test_each_step_twice_is_once(queue: Queue, target: Queue) -> None:
    put_all_kinds(queue)
    steps = Steps(target, exported(queue), jobs_a_step=3)
    for call in steps.all[:-1]:
        assert words(steps.send(call)) == ["ok"]
        after = target.snapshot()
        assert words(steps.send(call, call)) == ["ok", "ok"]
        assert target.snapshot() == after
    assert words(steps.send(steps.end)) == ["ok"]
    after = target.snapshot()
    assert words(steps.send(*steps.all)) == ["done"] * len(steps.all)
    assert target.snapshot() == after


def test_nothing_starts_before_the_last_step(queue: Queue, target: Queue) -> None:
    number = put(queue, new_job())
    worker = target.worker()
    assert worker.ask().word == "empty"
    steps = Steps(target, exported(queue))
    steps.send(steps.begin, *steps.puts)
    assert target.broker.redis.hget(target.broker.keys.paused, "*") == b"bob: import in progress"
    assert worker.ask().word == "empty"
    worker.tokens()
    steps.send(steps.end)
    assert worker.tokens() == ["*"], "who is idle is told"
    assert worker.claim().number == number


@pytest.mark.parametrize("before", ["ann: stop", None])
def test_a_pause_that_was_there_stays(queue: Queue, target: Queue, before: str | None) -> None:
    put(queue, new_job())
    if before is None:
        queue.broker.pause("*", "to move it", "ann")
    else:
        target.broker.redis.hset(target.broker.keys.paused, "*", before)
    imported(target, exported(queue))
    expected = (before or "ann: to move it").encode()
    assert target.broker.redis.hgetall(target.broker.keys.paused) == {b"*": expected}


def test_a_namespace_that_has_had_a_job_is_left_alone(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    target.enqueue()
    before = target.snapshot()
    with pytest.raises(ServerRefused, match=r"'the-other' has had 1 jobs: .*another --namespace") as caught:
        imported(target, exported(queue))
    assert caught.value.exit_code == 1
    assert target.snapshot() == before


def test_half_of_another_file_is_left_alone(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    steps = Steps(target, exported(queue))
    steps.send(steps.begin)
    before = target.snapshot()
    put(queue, new_job())
    with pytest.raises(ServerRefused, match="half of another import: run that one to its end"):
        imported(target, exported(queue))
    assert target.snapshot() == before


def test_workers_and_settings_that_are_there_do_no_harm(queue: Queue, target: Queue) -> None:
    """A worker has begun the namespace's life already, under a lease of its own."""
    queue.broker.configure(2000)
    put(queue, new_job())
    assert target.send(target.broker.register_call("w1", "GPU-1", 1, b"x")) == "ok"
    instance = target.broker.settings().instance
    done = imported(target, exported(queue))
    assert done.instance == instance == target.broker.settings().instance
    assert target.broker.settings().ttl_ms == 15000
    assert target.worker().claim().number == 1


def test_what_is_submitted_meanwhile_is_not_in_its_way(queue: Queue, target: Queue) -> None:
    numbers = [put(queue, new_job(str(at), more="unique=key\n" if at == 2 else "")) for at in range(4)]
    steps = Steps(target, exported(queue), jobs_a_step=1)
    steps.send(*steps.all[:2])
    mine = put(target, new_job("mine", more="unique=key\n"))
    assert mine == numbers[-1] + 1
    steps.send(*steps.all[2:])
    names = [target.job(number)["name"] for number in (*numbers, mine)]
    assert names == ["0", "1", "2", "3", "mine"]
    assert target.broker.redis.hget(target.broker.keys.unique, "key") == str(mine).encode()


def test_what_has_moved_on_meanwhile_is_not_set_back(queue: Queue, target: Queue) -> None:
    """The first try died, somebody cancelled a job and another fell due; then the import is begun again."""
    first, second = put(queue, new_job()), put(queue, new_job(more="delay_ms=60000\n"))
    data = exported(queue)
    steps = Steps(target, data)
    steps.send(steps.begin, *steps.puts)
    assert target.broker.cancel(first, "", "bob") == "cancelled"
    target.broker.redis.zadd(target.broker.keys.scheduled, {str(second): 1})
    target.been_looking()
    target.broker.sweep()
    done = imported(target, data)
    assert done.jobs == 2
    assert [target.job(number)["state"] for number in (first, second)] == ["cancelled", "pending"]
    assert target.broker.redis.hgetall(target.broker.keys.unfinished) == {b"ann": b"1"}
    assert unexplained(target.broker.redis, target.broker.keys) == []


@pytest.mark.parametrize(
    ("condition", "state"), [("succeeded", "cancelled"), ("failed", "cancelled"), ("any", "cancelled")]
)
def test_a_parent_that_ends_before_its_child_comes(queue: Queue, target: Queue, condition: str, state: str) -> None:
    parent = put(queue, new_job())
    child = put(queue, new_job(more=f"after={parent}::{condition}\n"))
    grandchild = put(queue, new_job(more=f"after={child}::any\n"))
    steps = Steps(target, exported(queue), jobs_a_step=1)
    steps.send(*steps.all[:2])
    target.broker.cancel(parent, "", "bob")
    target.reap()
    steps.send(*steps.all[2:])
    target.reap()
    assert target.job(child)["state"] == target.job(grandchild)["state"] == state
    assert target.job(child)["reason"] == "dependency_failed"
    assert f"job {parent} cancelled" in target.job(child)["detail"]
    assert not target.broker.redis.exists(target.broker.keys.blocked)


def test_children_of_a_parent_that_has_ended_go_on(queue: Queue, target: Queue) -> None:
    """It was read while it ended: the child's edge is still open, as it may be when thousands wait for one job."""
    parent = put(queue, new_job())
    child = put(queue, new_job(more=f"after={parent}::succeeded\n"))
    data = exported(queue)
    records_ = open_archive(io.BytesIO(data), "f")
    stream = io.BytesIO()
    writer = Writer(stream, records_.header)
    for kind, *parts in records_.records():
        if kind == "job" and parts[0] == parent:
            parts[1] |= {b"state": b"succeeded", b"finished_at": b"1796056706600"}
        if kind != "end":
            writer.put(kind, *parts)
        else:
            writer.end(parts[0])
    imported(target, stream.getvalue())
    target.reap()
    assert target.job(child)["state"] == "pending"
    assert target.broker.redis.hgetall(target.broker.keys.blocked_by(child))[str(parent).encode()].startswith(b"met:")


def test_a_child_without_its_parent_is_cancelled(queue: Queue, target: Queue) -> None:
    parent = put(queue, new_job())
    child = put(queue, new_job(more=f"after={parent}::succeeded\n"))
    queue.broker.redis.delete(queue.broker.keys.job(parent), queue.broker.keys.spec(parent))
    imported(target, exported(queue))
    assert target.job(child)["state"] == "cancelled"
    assert target.job(child)["detail"] == f"job {parent} is gone"
    assert unexplained(target.broker.redis, target.broker.keys) == []


def test_a_full_server_refuses_and_the_import_goes_on_when_there_is_room(
    queue: Queue, target: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        put(queue, *[new_job() for _ in range(100)])
    data = exported(queue)
    with full(target):
        before = target.snapshot()
        with pytest.raises(ServerUnavailable, match="refuses import now"):
            imported(target, data)
        assert target.snapshot() == before
    send, sent = _Import._send, []

    def send_two(self: _Import, step: str, words: list[Value]) -> str:
        sent.append(step)
        if len(sent) < 3:
            return send(self, step, words)
        with full(target):
            return send(self, step, words)

    monkeypatch.setattr(_Import, "_send", send_two)
    with pytest.raises(ImportStopped, match=r"of 300 jobs: .*stays paused.*run the same import again") as caught:
        imported(target, data)
    assert caught.value.exit_code == 75 and sent == ["begin", "put", "put"]
    monkeypatch.undo()
    assert imported(target, data).jobs == 300
    assert records(exported(target)) == records(data)


def test_an_empty_namespace_makes_the_trip(queue: Queue, target: Queue) -> None:
    assert imported(target, exported(queue)).jobs == 0
    assert target.enqueue() == 1


@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
def test_large_values_go_in_pieces(queue: Queue, target: Queue, size: int) -> None:
    numbers = [put(queue, new_job()) for _ in range(6)]
    worker = queue.worker()
    for at in range(6):
        run = worker.claim()
        queue.send(queue.broker.complete_call(run.number, run.fence, b"x", bytes([at]) * size))
    imported(target, exported(queue))
    redis, keys = target.broker.redis, target.broker.keys
    assert [redis.get(keys.value(number)) for number in numbers] == [bytes([at]) * size for at in range(6)]


def test_a_cut_answer_is_asked_for_again(server: RealServer, queue: Queue, target: Queue) -> None:
    put_all_kinds(queue)
    data = exported(queue)
    with Cutter(server.socket, None) as cutter:
        broker = Broker.connect(cutter.url, "the-other")
        other = Queue(cutter.url, "the-other")
        other.broker = broker
        for how in ("reply", "request"):
            cutter.lose(how, load("import").sha)
            imported(other, data)
            assert cutter.cuts > 0
        broker.close()
    assert records(exported(target)).keys() == records(data).keys()
