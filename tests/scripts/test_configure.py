"""What belongs to the namespace: read, changed, audited, and refused from the future."""

from __future__ import annotations

import pytest
from queue_driver import Queue
from servers import RealServer

from foxqueue import broker as broker_module
from foxqueue.broker import SCHEMA, Broker
from foxqueue.errors import ServerError, ServerRefused
from foxqueue.scripts import source


def test_defaults_are_told_and_changes_come_back(queue: Queue) -> None:
    broker = queue.broker
    first = broker.settings()
    assert (first.schema, first.max_losses, first.max_result_bytes) == (SCHEMA, 3, 1024 * 1024)
    assert (first.retain_finished_ms, first.retain_failed_ms) == (30 * 86400_000, 90 * 86400_000)
    changed = broker.change_settings({"max_losses": "7", "priority:dqn": "9", "retain_failed_count": "5"}, "me")
    assert (changed.max_losses, changed.retain_failed_count, changed.priorities["dqn"]) == (7, 5, 9)
    assert broker.settings() == changed
    assert broker.change_settings({"max_losses": None, "priority:dqn": None}, "me").max_losses == 3
    assert broker.settings().priorities == first.priorities


def test_changes_are_audited_once_whoever_sends_them_again(queue: Queue) -> None:
    call = queue.broker.configure_call(None, {"max_losses": "7"}, "someone", "aa")
    queue.send(call)
    queue.broker.change_settings({"max_losses": "8"}, "other")
    before = queue.snapshot()
    assert queue.send(call) == "ok"
    assert queue.snapshot() == before, "a late copy brings nothing back"
    entries = [fields for _, fields in queue.broker.redis.xrange(queue.broker.keys.events)]
    assert [(entry[b"by"], entry[b"set"]) for entry in entries if entry[b"event"] == b"configure"] == [
        (b"someone", b"max_losses=7"),
        (b"other", b"max_losses=8"),
    ]


def test_ageing_counts_from_the_next_job_on(queue: Queue) -> None:
    queue.broker.change_settings({"aging_us": "1000000"}, "me")
    low, high = queue.enqueue(priority=2), queue.enqueue(priority=5)
    assert int(queue.job(low)["rank"]) - int(queue.job(high)["rank"]) > 2_900_000
    assert queue.worker().claim().number == high


def test_damaged_settings_are_named(queue: Queue) -> None:
    queue.broker.redis.hset(queue.broker.keys.settings, "priority:dqn", "lots")
    with pytest.raises(ServerError, match="cannot be read") as caught:
        queue.broker.settings()
    assert caught.value.cure and "HGETALL" in caught.value.cure


def test_data_of_a_newer_foxqueue_are_refused_at_the_door(queue: Queue, server: RealServer) -> None:
    namespace = queue.broker.keys.namespace
    queue.enqueue()
    assert queue.broker.redis.hget(queue.broker.keys.settings, "schema") == str(SCHEMA).encode()
    queue.broker.redis.hset(queue.broker.keys.settings, "schema", SCHEMA + 1)
    with pytest.raises(ServerRefused, match=r"newer foxqueue .*upgrade this machine"):
        Broker.connect(server.url, namespace)
    with pytest.raises(ServerRefused):
        queue.broker.settings()


def test_who_runs_already_neither_takes_nor_gives_work_from_then_on(queue: Queue) -> None:
    worker, number = queue.worker(), queue.enqueue()
    queue.broker.redis.hset(queue.broker.keys.settings, "schema", SCHEMA + 1)
    before = queue.snapshot()
    with pytest.raises(ServerRefused, match="newer foxqueue"):
        queue.enqueue()
    assert worker.ask().word == "newer"
    assert queue.snapshot() == before and queue.job(number)["state"] == "pending"
    queue.broker.redis.hset(queue.broker.keys.settings, "schema", SCHEMA)
    assert worker.claim().number == number


def test_one_schema_in_both_languages() -> None:
    assert f"local SCHEMA = '{broker_module.SCHEMA}'" in source("_settings")
