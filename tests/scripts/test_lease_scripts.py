"""Leases without a job: who gets a device, keeps it and gives it back, whatever happens to the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from changed_rules import changed
from cutter import Cutter
from lease_driver import HOLDER, LEASE_MS, Holder, events, grant, lapse, lease, stats
from queue_driver import Queue
from servers import RealServer

from foxqueue.errors import ServerUnavailable
from foxqueue.scripts import Call, load

DEVICE, OTHER = "GPU-1", "GPU-2"
BOTH = (DEVICE, OTHER)


def test_a_free_device_is_granted_with_a_fence_a_key_and_its_holder(queue: Queue) -> None:
    holder = Holder(queue)
    reply = holder.ask()
    assert reply.word == "ok" and reply.rest == (holder.fence.encode(), str(LEASE_MS).encode())
    assert grant(queue, DEVICE) == f"{holder.fence} lease:{holder.token}"
    assert lease(queue, DEVICE) == holder.fence
    redis, keys = queue.broker.redis, queue.broker.keys
    assert 20_000 < redis.pttl(keys.lease(DEVICE)) <= LEASE_MS
    assert redis.hget(keys.holders, DEVICE).decode() == HOLDER
    assert reply.instance == queue.broker.settings().instance != ""


def test_the_second_is_told_by_whom_and_for_how_long(queue: Queue) -> None:
    first = Holder(queue).acquire()
    before = queue.snapshot()
    word, _, rest = Holder(queue, text="ben\tbox\t1\t\t").ask()
    device, held, text, left = map(bytes.decode, rest)
    assert (word, device, held, text) == ("taken", DEVICE, f"{first.fence} lease:{first.token}", HOLDER)
    assert 20_000 < int(left) <= LEASE_MS
    assert queue.snapshot() == before


def test_a_job_and_a_lease_keep_each_other_out(queue: Queue) -> None:
    run = queue.worker_with_job()
    reply = Holder(queue).ask()
    assert reply.word == "taken" and reply.rest[1] == f"{run.fence} job:{run.number}".encode()
    queue.complete(run)
    holder = Holder(queue).acquire()
    assert int(holder.fence) > int(run.fence)
    queue.enqueue()
    worker = queue.worker("w2")
    assert worker.ask().word == "taken"
    assert holder.release() == "ok"
    assert worker.tokens() == [DEVICE], "who stands beside the device is woken"
    assert int(worker.claim().fence) > int(holder.fence)


def test_several_devices_all_or_none(queue: Queue) -> None:
    one = Holder(queue, (OTHER,)).acquire()
    before = queue.snapshot()
    both = Holder(queue, BOTH)
    assert both.ask().rest[0].decode() == OTHER
    assert queue.snapshot() == before, "none of two is granted"
    one.release()
    both.acquire()
    assert {grant(queue, device) for device in BOTH} == {f"{both.fence} lease:{both.token}"}
    assert both.release(OTHER) == "ok"  # the taker of one lock gives that device back
    assert (lease(queue, DEVICE), lease(queue, OTHER)) == (both.fence, "")
    assert Holder(queue, (OTHER,)).ask().word == "ok"
    assert both.release() == "lost", "another has had one of them since"
    assert lease(queue, DEVICE) == ""


# --- the holder keeps it, or loses it --------------------------------------------------------------------


def test_a_renewal_lasts_as_long_as_the_first_grant_and_heals_a_lapsed_key(queue: Queue) -> None:
    holder = Holder(queue, BOTH).acquire()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.pexpire(keys.lease(DEVICE), 1_000)
    lapse(queue, OTHER)
    assert holder.renew().word == "ok"
    for device in BOTH:
        assert lease(queue, device) == holder.fence and 20_000 < redis.pttl(keys.lease(device)) <= LEASE_MS


def test_a_lapsed_lease_is_anybodys_and_its_holder_hears_of_it(queue: Queue) -> None:
    dead = Holder(queue).acquire()
    lapse(queue, DEVICE)
    alive = Holder(queue).acquire()
    assert int(alive.fence) > int(dead.fence)
    before = queue.snapshot()
    assert dead.renew().word == "lost" and dead.release() == "lost"
    assert queue.snapshot() == before
    assert stats(queue)["lost"] == 1


def test_a_job_that_gets_a_lapsed_lease_counts_it_as_lost(queue: Queue) -> None:
    dead = Holder(queue).acquire()
    lapse(queue, DEVICE)
    run = queue.worker_with_job()
    assert stats(queue)["lost"] == 1
    assert not queue.broker.redis.hexists(queue.broker.keys.holders, DEVICE)
    assert dead.renew().word == "lost" and dead.release() == "lost"
    assert queue.beat(run) == "ok"


@pytest.mark.parametrize("what", ["key", "grant", "both", "freed", "forgotten"])
def test_another_owner_is_loss_for_all_of_a_lease(queue: Queue, what: str) -> None:
    holder = Holder(queue, BOTH).acquire()
    redis, keys = queue.broker.redis, queue.broker.keys
    if what in ("key", "both"):
        redis.set(keys.lease(OTHER), "9999999999999999")
    if what in ("grant", "both"):
        redis.hset(keys.granted, OTHER, "9999999999999999 lease:ab")
    if what == "freed":
        redis.hset(keys.granted, OTHER, f"{holder.fence} -")
    if what == "forgotten":
        redis.hdel(keys.granted, OTHER)
    before = queue.snapshot()
    reply = holder.renew()
    assert reply.word == "lost" and reply.rest[0]
    assert queue.snapshot() == before


def test_wrong_holders_are_refused(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    wrong = Holder(queue)
    before = queue.snapshot()
    wrong.fence = holder.fence
    assert wrong.renew().word == "lost" and wrong.release() == "lost"
    wrong.token, wrong.fence = holder.token, "1"
    assert wrong.renew().word == "lost" and wrong.release() == "lost"
    assert queue.snapshot() == before


def test_an_operator_takes_a_lease_and_the_holder_ends_it(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    assert queue.broker.force_release(DEVICE, "root") == ("ok", None)
    assert queue.broker.force_release(DEVICE, "root again") == ("ok", None)
    reply = holder.renew()
    assert (reply.word, reply.rest) == ("released", (b"root",))
    assert Holder(queue).ask().word == "taken", "its processes are still there"
    assert holder.release() == "ok"
    assert Holder(queue).ask().word == "ok"
    assert [(event["device"], event["by"]) for event in events(queue, "force_release")] == [(DEVICE, "root")]
    assert stats(queue)["lost"] == 1


def test_an_operator_takes_a_lease_of_a_dead_holder(queue: Queue) -> None:
    """It is free when the key is gone: at once, or after what was left of it."""
    dead = Holder(queue).acquire()
    queue.broker.force_release(DEVICE, "root")
    lapse(queue, DEVICE)
    waits = queue.worker()
    queue.enqueue()
    queue.complete(waits.claim())
    dead = Holder(queue).acquire()
    lapse(queue, DEVICE)
    assert queue.broker.force_release(DEVICE, "root") == ("ok", None)
    assert grant(queue, DEVICE) == f"{dead.fence} -"
    assert dead.renew().word == "lost"


def test_what_was_counted(queue: Queue) -> None:
    holder = Holder(queue)
    queue.send(holder.acquire_call(waited_ms=250, contended=3))
    holder.acquire()
    holder.release()
    holder.release()
    found = stats(queue)
    assert found.pop("hold_ms") >= 0
    assert found == {"acquired": 1, "contended": 3, "wait_ms": 250, "released": 1}
    trail = events(queue, "lease_acquire", "lease_release")
    assert [event["device"] for event in trail] == [DEVICE] * 2 and trail[0]["by"] == "ann on box"


def test_a_newer_schema_is_left_alone(queue: Queue) -> None:
    queue.enqueue()
    queue.broker.redis.hset(queue.broker.keys.settings, "schema", 99)
    before = queue.snapshot()
    assert Holder(queue).ask().word == "newer"
    assert queue.send(Holder(queue).wait_call(DEVICE)) == "newer"
    assert queue.snapshot() == before


def test_only_a_pause_of_the_device_holds_leases_back(queue: Queue) -> None:
    queue.send(queue.broker.register_call("w1", DEVICE, 1, b""))
    queue.broker.pause(DEVICE, "cleaning", "me")
    reply = Holder(queue).ask()
    assert (reply.word, *reply.rest) == ("paused", DEVICE.encode(), b"me: cleaning")
    queue.broker.resume(DEVICE, "me")
    queue.broker.pause("*", "", "me")
    Holder(queue).acquire()


# --- each call twice, late, and at bad moments ------------------------------------------------------------


def acquire(queue: Queue) -> Call:
    return Holder(queue, BOTH).acquire_call()


def renew(queue: Queue) -> Call:
    return Holder(queue, BOTH).acquire().renew_call()


def release(queue: Queue) -> Call:
    return Holder(queue, BOTH).acquire().release_call()


def wait(queue: Queue) -> Call:
    Holder(queue, BOTH).acquire()
    return Holder(queue).wait_call(*BOTH)


def leave(queue: Queue) -> Call:
    """The turn goes to the next."""
    first = Holder(queue).acquire()
    waits, behind = Holder(queue).wait(), Holder(queue).wait()
    first.release()
    assert behind.ask().word == "yield"
    return waits.wait_call(needs=1)


def withhold(queue: Queue) -> Call:
    queue.broker.settings()
    return queue.broker.withhold_call(DEVICE, "dirty", "memory", "3G are not back", "boot", "w1", 7)


def clear(queue: Queue) -> Call:
    queue.send(withhold(queue))
    return queue.broker.clear_call(DEVICE, "me", "ab")


def forget(queue: Queue) -> Call:
    queue.send(withhold(queue))
    return queue.broker.forget_call(DEVICE, "me", "ab")


def force_release(queue: Queue) -> Call:
    Holder(queue).acquire()
    return queue.broker.force_release_call(DEVICE, "me", "ab")


VERBS = (acquire, renew, release, wait, leave, withhold, clear, forget, force_release)
EACH = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
Verb = Callable[[Queue], Call]


@EACH
def test_each_twice_is_once_also_for_a_server_that_forgets_its_scripts(queue: Queue, verb: Verb) -> None:
    call = verb(queue)
    before = queue.snapshot()
    queue.broker.redis.script_flush()
    first = queue.broker.send(call)[0]
    assert first.word == "ok"
    after = queue.snapshot()
    assert (after != before) == (verb is not renew)
    assert queue.broker.send(call, call) == [first, first]
    assert queue.snapshot() == after


@EACH
def test_a_full_server_lets_each_through(queue: Queue, verb: Verb) -> None:
    call = verb(queue)
    redis = queue.broker.redis
    redis.config_set("maxmemory", 1)
    try:
        assert queue.send(call) == "ok"
    finally:
        redis.config_set("maxmemory", 0)


@EACH
@pytest.mark.parametrize("how", ["reply", "request", "late"])
def test_lost_answers_and_copies_that_come_late(queue: Queue, cutter: Cutter, verb: Verb, how: str) -> None:
    call = verb(queue)
    queue.broker.redis.script_load(load(call.script.name).text)
    through = Queue(cutter.url, queue.broker.keys.namespace)
    cutter.lose(how, call.script.sha, 2)
    for _ in range(2):
        with pytest.raises(ServerUnavailable):
            through.send(call)
    assert through.send(call) == "ok"
    before = queue.snapshot()
    cutter.deliver()
    assert queue.snapshot() == before
    through.broker.close()


@pytest.fixture
def cutter(server: RealServer, tmp_path: Path) -> Iterator[Cutter]:
    with Cutter(server.socket, tmp_path / "p") as proxy:
        yield proxy


def late_copies(queue: Queue) -> None:
    """Each call of a lease again: when it has ended, when another has the device, and when that has ended."""
    first = Holder(queue).acquire()
    copies = [first.wait_call(DEVICE), first.acquire_call(), first.renew_call(), first.release_call()]
    first.release()
    for step in ("released", "another has it", "free again"):
        before = queue.snapshot()
        words = [queue.send(copy) for copy in copies]
        assert queue.snapshot() == before, f"late copies, {step}: {words}"
        if step == "released":
            assert words == ["stale", "stale", "lost", "ok"]
            second = Holder(queue).acquire()
        else:
            assert words == ["stale", "stale", "lost", "lost"]
            second.release()


def test_late_copies_of_all_calls_change_nothing(queue: Queue) -> None:
    late_copies(queue)


def test_a_late_acquire_does_not_bring_a_dead_holders_lease_back(queue: Queue) -> None:
    holder = Holder(queue)
    call = holder.acquire_call()
    assert queue.send(call) == "ok"
    lapse(queue, DEVICE)
    before = queue.snapshot()
    assert queue.send(call) == "ok"
    assert queue.snapshot() == before
    assert Holder(queue).ask().word == "ok"
    assert queue.send(call) == "stale"


def test_a_late_wait_of_one_who_has_left_does_not_stand_again(queue: Queue) -> None:
    Holder(queue).acquire()
    waits = Holder(queue).wait()
    call = waits.wait_call(DEVICE)
    assert waits.leave() == "ok"
    before = queue.snapshot()
    assert queue.send(call) == "stale" and queue.send(waits.acquire_call()) == "stale"
    assert queue.snapshot() == before


RULES = {
    "tokens that were used": ("lease_acquire", "answered() and not own[1]", "false"),
    "tokens of waiters": ("lease_wait", "if answered() then", "if false then"),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_late_copies_find_a_rule_that_is_missing(queue: Queue, rule: str) -> None:
    with changed(*RULES[rule]), pytest.raises(AssertionError):
        late_copies(queue)


def test_an_emptied_server_answers_under_no_instance(queue: Queue) -> None:
    """Only under the instance of its grant does `lost` count."""
    holder = Holder(queue).acquire()
    queue.broker.redis.flushall()
    replies = queue.broker.send(holder.renew_call(), holder.release_call())
    assert [(reply.word, reply.instance) for reply in replies] == [("lost", "")] * 2
    assert queue.snapshot() == {}


def test_a_key_of_another_type_is_somebody_elses(queue: Queue) -> None:
    holder = Holder(queue).acquire()
    redis, keys = queue.broker.redis, queue.broker.keys
    redis.delete(keys.lease(DEVICE))
    redis.rpush(keys.lease(DEVICE), "x")
    assert holder.renew().word == "lost"
    assert holder.release() == "ok"
    assert redis.llen(keys.lease(DEVICE)) == 1
    assert Holder(queue).ask().word == "taken"


@pytest.mark.parametrize("many", [8, 400])
def test_a_lease_takes_less_than_300_bytes(server: RealServer, many: int) -> None:
    """More than the free device, whose last grant is known anyway. The trail is capped, and answers are forgotten."""
    queue = Queue(server.url, "default")
    redis, keys = queue.broker.redis, queue.broker.keys

    def taken() -> int:
        kept = (keys.granted, keys.holders, *(keys.lease(device) for device in named))
        return sum(redis.memory_usage(key, samples=0) or 0 for key in kept)

    text = "researcher\tgpu-server-01\t1234567\t1796094879717\ttrain.py"
    named = [f"GPU-{at:08x}-1f0c-4a5b-9c3d-0123456789ab" for at in range(many)]
    holders = [Holder(queue, (device,), text=text).acquire() for device in named]
    held = taken()
    for holder in holders:
        holder.release()
    free = taken()
    redis.flushall()
    queue.broker.close()
    assert (held - free) / many < 300
