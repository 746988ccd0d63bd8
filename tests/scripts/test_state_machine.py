"""All scripts against a model of the queue, in walks that hypothesis makes up; see ``state_machine``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from changed_rules import changed
from hypothesis import HealthCheck, Phase, settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test
from queue_driver import Queue
from servers import binaries
from state_machine import machine
from state_places import TURN_MS

from foxqueue.scripts import names

STEPS = 2_000  # really done, on each server
SOAK_STEPS = 25_000
WALK = settings(
    stateful_step_count=50,
    deadline=None,
    database=None,
    derandomize=False,  # where CI is set, hypothesis would walk the same ways each time
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate, Phase.shrink],
)


# File, what stands there, what is put there instead.
RULES = {
    "the fence of the run": ("_guard", "job[1] == 'running' and job[2] == fence", "job[1] == 'running'"),
    "the settled word": ("_guard", "job[3] == fence", "job[3] == ''"),
    "the grant behind the lease": (
        "_device",
        "job and job[1] == 'running' and job[2] == given_fence or false",
        "false",
    ),
    "the same question again": ("claim", "question == last_question", "question == ''"),
    "the answer looked up": ("_request", "return found[1] or", "return nil and"),
    "grace after absence": ("_reap", "gap > ttl_ms / 2 or gap < 0 or", "false or"),
    "ticks that only grow": ("_clock", "math.max(now_us, last_tick + 1)", "now_us"),
    "waking passed on": ("claim", "      wake(woken_shape, 1)\n", ""),
    "one wake-up for each job": ("_ready", "wake(shape_name, #rows / 2)", "wake(shape_name, 1)"),
    "all woken for a new shape": ("_ready", "wake_all() --", "local _ = wake_all --"),
    "losses that make poison": ("_lost", "blamed >= max_losses", "blamed > max_losses"),
    "a requeued job's old result": (
        "requeue",
        "redis.call('UNLINK', prefix .. 'result:' .. number, ",
        "redis.call('UNLINK', ",
    ),
    "a requeued job's old cancel": ("requeue", "'cancel_requested', ", ""),
    "a device released by force": (
        "heartbeat",
        "redis.call('HGET', granted, name) ~= grant_text(fence, number) or ",
        "",
    ),
    "output purged with its job": ("_purge", "prefix .. 'log:' .. n, ", ""),
    "the retry's place in line": ("_promote", "ready(n, job[2], job[3])", "ready(n, job[2], digits(now_us))"),
    "what a child waits for": ("_parents", "state == condition or", "true or"),
    "a parent judged at once": ("_parents", "meets(condition, parent[1]) and 'met' or 'never'", "'met'"),
    "a child's new place": ("_settle", "unblock(child, true)", "unblock(child, false)"),
    "two runs with one key": ("_parents", "parent[2] == parent_born and not has_ended(parent[1])", "false"),
    "a hold": ("_settle", "      if job[2] then", "      if false then"),
    "its own time after its parents": ("_settle", "local due = whole(job[3])", "local due = false"),
    "what expired before it starts": ("claim", "tonumber(job[12]) <= now_ms", "false"),
    "a claim ends the expiry": ("claim", "redis.call('ZREM', named('expiry'), n)", ""),
    "a group that is not whole": ("_group", "found[1] or found[2]", "found[2]"),
    "a group's limit": ("_group", "count(found[4]) >= count(found[3])", "false"),
    "a group's new shape": (
        "_ready",
        "  if new then\n    wake_all",
        "  if new and may_start(shape_name) then\n    wake_all",
    ),
    "a paused device": ("claim", "pauses[1] or pauses[2]", "pauses[1]"),
    "blocked jobs wait": ("_job", "state == 'blocked'", "state == 'none'"),
    "unfinished jobs": ("_ended", "named('unfinished'), owner, -1)", "named('unfinished'), owner, 0)"),
    "those of nobody": ("requeue", "if job[5] and job[5] ~= '' then", "if job[5] then"),
    "losses long after the start": ("_lost", "now_ms - count(job[10]) < POISON_MS", "true"),
    "an end that was told": ("told", " or redis.call('ZREM', named('notices'), number) == 0", ""),
    "the next to be due": ("_ready", "tonumber(due) < tonumber(first)", "false"),
    "ends that nobody sees yet": (
        "_settle",
        "(group and redis.call('HEXISTS', group_key(group), 'filling') == 1)",
        "false",
    ),
    "jobs that never started": ("_ended", "started and 'finished'", "true and 'finished'"),
    "a group given up": ("_dissolve", "redis.call('HSET', group_key(group), 'filling', '')", ""),
    "jobs of a group given up": ("_dissolve", "'shape', string.match(job[2], '^[^@]*'))", "'shape', job[2])"),
    "the fence of a lease": ("lease_renew", "grant ~= fence .. ' lease:' .. token", "not grant"),
    "the rank of a waiter": ("claim", "waiter_rank < rank", "false"),
    "a turn passed on": ("_leave_line", "    freed(name)\n", ""),
    "whole or slotted": ("_slots", "or in_the_way(name))", ")"),
    "room for jobs": ("claim", "tonumber(mib) > 0 and tonumber(mib) <= left_mib", "true"),
    "room for leases": ("lease_acquire", "tonumber(declares) > left", "false"),
    "a withheld device": ("_slots", "or withheld_as(name) or", "or"),
}


@pytest.fixture(autouse=True)
def nothing_in_the_tree(tmp_path: Path) -> None:
    """Hypothesis keeps what it learns about the code in the current directory, unless told otherwise."""
    set_hypothesis_home_dir(tmp_path)


@pytest.fixture(autouse=True)
def no_time_passes() -> Iterator[None]:
    """A turn is over when an accident says so."""
    with (
        changed("_line", "TURN_MS = 1000", f"TURN_MS = {TURN_MS}"),
        changed("_line", "DEAF_MS = 100 ", f"DEAF_MS = {TURN_MS} "),
        changed("_line", "KEPT_MS = 5000", "KEPT_MS = 900000"),
    ):
        yield


# `import` puts a whole namespace back into an empty one: test_import.py has it.
HAPPENS = {*names(), "accepted", "accident", "promote", "expire", "settle", "reap", "dissolve"} - {"import"}


def walk(queue: Queue, steps: int, **more: Any) -> None:
    """Walk until so many steps were really done; a failure prints its shortest walk and a blob to repeat it."""
    walker, missing = machine(queue), HAPPENS
    while walker.done["steps"] < steps or (missing and walker.done["steps"] < 6 * steps):
        run_state_machine_as_test(walker, settings=settings(WALK, max_examples=8, **more))
        missing = HAPPENS - {name.split(" ")[0] for name in walker.done.elements()}
    assert not missing, f"not all was tried: {missing} did not happen in {dict(walker.done)}"
    print(f"{walker.done['steps']} steps: {dict(sorted(walker.done.items()))}")


def test_the_queue_is_what_the_model_says(queue: Queue) -> None:
    walk(queue, STEPS)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_the_queue_is_what_the_model_says_for_long(queue: Queue) -> None:
    walk(queue, SOAK_STEPS // 2)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", binaries()[:1], ids=str, indirect=True)
@pytest.mark.parametrize("rule", RULES)
def test_the_machine_finds_a_rule_that_is_missing(queue: Queue, rule: str) -> None:
    # Flaky: the same walk failed at another step the second time, where what is missing depends on the moment.
    with changed(*RULES[rule]), pytest.raises((AssertionError, Flaky)) as found:
        walk(queue, 3 * SOAK_STEPS, phases=[Phase.generate])  # most are found in a tenth of that
    assert "not all was tried" not in str(found.value) and "the rule moved" not in str(found.value)
