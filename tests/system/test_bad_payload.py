"""A job whose record makes no sense ends, and its worker goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stack import Stack, until_exists

from foxqueue.broker import Environment, NewJob
from foxqueue.codec import pack

GOOD: dict[str, Any] = {"v": 1, "argv": ["true"], "cwd": "/", "umask": 0o022, "env": {}, "time_limit_s": None}


def enqueue(stack: Stack, spec: bytes) -> int:
    return stack.api.broker.enqueue(NewJob("odd", "g1", 5, 2, 100, spec), Environment.of(stack.environ))[0]


def test_specs_that_cannot_be_read_are_dead_letters_of_the_same_worker(stack: Stack) -> None:
    """A5: a spec of a later version, of other types, no msgpack at all."""
    stack.up("--simulate", "1x24G", workers=1)
    before = {worker["id"] for worker in stack.api.workers()}
    odd = [
        {**GOOD, "v": 2},
        {**GOOD, "argv": "true"},
        {**GOOD, "argv": [1, 2]},
        {**GOOD, "argv": [b"true"]},
        {**GOOD, "cwd": None},
        {**GOOD, "umask": "022"},
        {**GOOD, "env": ["A=1"]},
        {**GOOD, "env": {"A": 1}},
        {**GOOD, "time_limit_s": "30m"},
        {**GOOD, "visible": "all"},
        ["argv"],
        None,
    ]
    numbers = [enqueue(stack, pack(spec)) for spec in odd] + [enqueue(stack, b"\xc1 not msgpack")]
    good = enqueue(stack, pack(GOOD))
    lost_env = stack.submit("true", flags=("-e", "ONLY=here"))
    assert stack.await_state(good, "succeeded")["attempts"] == 1
    for number in numbers:
        job = stack.job(number)
        assert (job["state"], job["reason"]) == ("failed", "bad_payload"), (odd[number - 1], job)
    assert stack.await_state(lost_env, "succeeded")
    assert {worker["id"] for worker in stack.api.workers()} == before


def test_damaged_records_at_the_head_are_put_aside_and_the_next_job_starts_at_once(stack: Stack) -> None:
    """A5: fields missing, counters that are none, a record or a spec of another type or gone; an idle worker waits."""
    stack.up("--simulate", "1x24G", workers=1)
    broker: Any = stack.api.broker
    redis, keys = broker.redis, broker.keys
    stack.await_state(stack.queue("true"), "succeeded")
    before = {worker["id"] for worker in stack.api.workers()}
    flag = stack.root / "flag"
    busy = stack.queue(*until_exists(flag))
    stack.await_state(busy, "running")
    odd = [stack.queue("true", priority=9) for _ in range(8)]
    good = stack.queue("true", priority=0)
    for number, fields in zip(odd, (["shape"], ["born", "rank"], ["attempts"], ["state"]), strict=False):
        redis.hdel(keys.job(number), *fields)
    redis.hset(keys.job(odd[4]), "losses", "1e3")
    redis.delete(keys.job(odd[5]), keys.spec(odd[6]), keys.spec(odd[7]))
    redis.rpush(keys.job(odd[5]), "a list")
    redis.sadd(keys.spec(odd[7]), "a set")
    flag.touch()
    done = stack.await_state(good, "succeeded")
    view = stack.api.job(good).view
    ended = stack.api.job(busy).view.finished_ms
    assert done["attempts"] == 1 and ended and view.started_ms and view.started_ms - ended < 1000
    for number in odd:
        assert (stack.job(number)["state"], stack.job(number)["reason"]) == ("failed", "bad_payload"), number
        assert redis.zscore(keys.failed, number) and redis.zscore(keys.pending("g1"), number) is None
    for number in (odd[0], *odd[5:]):
        assert "bad_payload" in stack.fox("show", str(number)).stdout
    assert len(json.loads(stack.fox("ls", "--json").stdout)) == 11
    assert {worker["id"] for worker in stack.api.workers()} == before


@pytest.mark.parametrize("damage", ["gone", "garbage", "another type"])
def test_an_environment_that_cannot_be_read(stack: Stack, damage: str) -> None:
    stack.serve()
    redis, keys = stack.api.redis, stack.api.broker.keys
    number = enqueue(stack, pack(GOOD))
    key = keys.env(redis.hget(keys.job(number), "env").decode())
    redis.delete(key)
    if damage == "garbage":
        redis.set(key, b"\xc1")
    elif damage == "another type":
        redis.lpush(key, "x")
    stack.start_worker("sim:0", "--simulate", "1x24G")
    job = stack.await_state(number, "failed")
    assert job["reason"] == "bad_payload" and "environment" in job["detail"]
    assert stack.await_state(enqueue(stack, pack({**GOOD, "v": 3})), "failed")["reason"] == "bad_payload"
