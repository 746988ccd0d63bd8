"""What an import does with what it cannot understand, and what it does not take at all."""

from __future__ import annotations

import io

import pytest
from archives import Steps, exported, imported, new_job, put, records, target
from key_owners import unexplained
from queue_driver import ENVIRONMENT, Queue

from foxqueue.archive import Writer, open_archive
from foxqueue.errors import InvalidInput, ServerError, ServerRefused

__all__ = ["target"]


DAMAGE = {
    "no hash": lambda redis, keys: (redis.delete(keys.job(1)), redis.set(keys.job(1), "junk")),
    "no state": lambda redis, keys: redis.hdel(keys.job(1), "state"),
    "another state": lambda redis, keys: redis.hset(keys.job(1), "state", "\x1b[2J"),
    "no rank": lambda redis, keys: redis.hset(keys.job(1), "rank", "1e3"),
    "no priority": lambda redis, keys: redis.hdel(keys.job(1), "priority"),
    "no shape": lambda redis, keys: redis.hset(keys.job(1), "shape", "g1 \xff"),
    "no spec": lambda redis, keys: redis.delete(keys.spec(1)),
    "a tick of the year 3000": lambda redis, keys: redis.hset(keys.job(1), "fence", "32503680000000000"),
    "scheduled for never": lambda redis, keys: redis.hset(keys.job(1), "state", "scheduled"),
    "blocked by nothing": lambda redis, keys: redis.hset(keys.job(1), "state", "blocked"),
    "no end": lambda redis, keys: redis.hset(keys.job(1), "state", "succeeded"),
    "2,000 fields": lambda redis, keys: redis.hset(keys.job(1), mapping={f"f{at}": at for at in range(2000)}),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_cannot_be_understood_is_put_aside(queue: Queue, target: Queue, how: str) -> None:
    put(queue, new_job("broken"))
    child = put(queue, new_job("child", more="after=1::succeeded\n"))
    good = put(queue, new_job("good"))
    DAMAGE[how](queue.broker.redis, queue.broker.keys)
    done = imported(target, exported(queue))
    assert done.jobs == 3
    assert len(done.said) == 1 and "job 1 cannot be understood" in done.said[0]
    target.reap()
    job = target.job(1)
    assert (job["state"], job["reason"]) == ("failed", "bad_payload")
    assert target.job(child)["state"] == "cancelled"
    assert target.worker().claim().number == good
    assert unexplained(target.broker.redis, target.broker.keys) == []


def test_settings_that_cannot_be_understood_are_left_out(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    queue.broker.redis.hset(
        queue.broker.keys.settings,
        mapping={"aging_us": "soon", "colour": "red", "priority:dqn": "9", "max_losses": "5"},
    )
    data = exported(queue)
    done = imported(target, data)
    assert sorted(sentence.split("setting ")[1] for sentence in done.said) == ["'aging_us'", "'colour'"]
    assert target.broker.settings().priorities["dqn"] == 9 and target.broker.settings().max_losses == 5


def test_a_group_that_is_being_filled_is_left_out(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    broker = queue.broker
    broker.send(
        broker.enqueue_call([new_job(shape="g1@half")], ENVIRONMENT, "t1", with_env=True, user="ann", filling="s1")
    )
    last = put(queue, new_job())
    done = imported(target, exported(queue))
    assert done.jobs == 2
    assert not target.broker.redis.exists(target.broker.keys.job(2), target.broker.keys.group("half"))
    assert target.enqueue() == last + 1, "its number is not given out again"


def test_a_newer_schema_is_refused(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    archive = open_archive(io.BytesIO(exported(queue)), "f")
    stream = io.BytesIO()
    Writer(stream, archive.header | {"schema": 99}).end({"next": 1, "clock": 1, "jobs": 0})
    with pytest.raises(InvalidInput, match=r"schema 99.*upgrade this machine"):
        imported(target, stream.getvalue())
    queue.broker.redis.hset(target.broker.keys.settings, "schema", "99")
    with pytest.raises(ServerRefused, match="newer foxqueue"):
        imported(target, exported(queue))


def test_half_an_import_is_not_exported(queue: Queue, target: Queue) -> None:
    put(queue, new_job())
    steps = Steps(target, exported(queue))
    steps.send(steps.begin, *steps.puts)
    with pytest.raises(Exception, match="half imported: run that import to its end"):
        exported(target)
    steps.send(steps.end)
    assert ("job", 1) in records(exported(target))


@pytest.mark.parametrize(
    ("key", "what"), [("next", "is no number"), ("groups", "cannot be read"), ("settings", "cannot")]
)
def test_what_all_stands_on_must_be_readable(queue: Queue, key: str, what: str) -> None:
    put(queue, new_job())
    broken = getattr(queue.broker.keys, key)
    queue.broker.redis.delete(broken)
    queue.broker.redis.set(broken, "junk")
    with pytest.raises(ServerError, match=f"{key} {what}.*foxqueue doctor"):
        exported(queue)
