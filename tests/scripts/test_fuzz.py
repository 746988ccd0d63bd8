"""The state machine under random accidents; see ``queue_fuzz``. Longer by hand, with FOXQUEUE_FUZZ_SEEDS and _STEPS."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from changed_rules import changed
from queue_driver import Queue
from queue_fuzz import Fuzz

SEEDS = int(os.environ.get("FOXQUEUE_FUZZ_SEEDS", "6"))
STEPS = int(os.environ.get("FOXQUEUE_FUZZ_STEPS", "600"))

LOOKED_UP = "return found[1] or redis.call('HGET', prefix .. 'requests:' .. digits(period - 1), token)"

# file, what stands there, what is put there instead, and the oracle that has to notice.
RULES = {
    "guard without the fence": (
        ("_guard", "job[1] == 'running' and job[2] == fence", "job[1] == 'running'"),
        "late copy|old run|the end of job|sent again",
    ),
    "no settled word": (("_guard", "job[3] == fence", "job[3] == ''"), "sent again|the end of job"),
    "no grant behind the lease": (
        ("_device", "job and job[1] == 'running' and job[2] == given_fence or false", "false"),
        "both run on",
    ),
    "same question, new job": (("claim", "question == last_question", "question == ''"), "claim"),
    "smaller question, new job": (
        ("claim", "tonumber(question) < tonumber(last_question)", "question == ''"),
        "late copy of claim",
    ),
    "an answer is not looked up": (
        (
            "_request",
            "return found[1] or redis.call('HGET', prefix .. 'requests:' .. digits(period - 1), token)",
            "return nil",
        ),
        "(enqueue|cancel|requeue|force_release|configure) (answered|again)",
    ),
    "no grace after absence": (("_reap", "gap > ttl_ms / 2 or gap < 0 or", "false or"), "overdue"),
    "deadlines far ahead are left": (("sweep", "clamp(limit)\n", ""), "far ahead"),
    "ticks by the clock alone": (("_clock", "math.max(now_us, last_tick + 1)", "now_us"), "the clock fell"),
    "a claimed job stays pending": (
        (
            "claim",
            "redis.call('ZREM', prefix .. 'pending:' .. shape, n)\nredis.call('SET', lease",
            "redis.call('SET', lease",
        ),
        "stands in",
    ),
    "the lease outlives the grant": (
        ("_ended", "      redis.call('DEL', lease_key(name))\n", "      local _ = name\n"),
        "of a grant that ended",
    ),
    "a lost attempt is not given back": (("_lost", "count(job[6]) - 1", "count(job[6])"), "job"),
    "an old register wins": (("register", "tonumber(sequence) <= tonumber(count)", "sequence == ''"), "register"),
    "output of an old run": (("log", "  return { word, life }", "  word = nil"), "log of an old run"),
    "a requeued job stays a dead letter": (("requeue", "redis.call('ZREM', failed, number)\n", ""), "stands in"),
    "a released device may go at once": (
        ("_device", "'^(%d+) %l+:(%d+)$'", "'^(%d+) job:(%d+)$'"),
        "both run on",
    ),
}


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.timeout(0 if STEPS > 5_000 else 120)
def test_the_queue_makes_sense_after_every_step(queue: Queue, seed: int) -> None:
    done = Fuzz(queue, seed).run(STEPS)
    happened = Counter(name.split(" ")[0] for name in done.elements())
    tried = {"enqueue", "claim", "heartbeat", "accepted", "late", "crash", "requeue", "force_release", "configure"}
    assert tried <= set(happened), "nothing was tried"


@pytest.mark.parametrize("rule", RULES)
def test_the_fuzz_finds_a_rule_that_is_missing(queue: Queue, rule: str) -> None:
    change, oracle = RULES[rule]
    with changed(*change), pytest.raises(AssertionError, match=oracle):
        for seed in range(12):
            queue.broker.redis.flushall()
            Fuzz(queue, seed).run(600)
