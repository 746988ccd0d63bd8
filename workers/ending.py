"""The call that tells the queue how a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foxqueue import codec
from foxqueue.broker import Broker
from foxqueue.retry import backoff
from foxqueue.scripts import Call
from workers.verdict import Verdict

MAX_DETAIL = 400  # characters of a detail in the job's hash; the exit record has it all


def outcome_of(record: Mapping[str, Any] | None, verdict: Verdict) -> bytes:
    """What came out of a run, packed: the exit record, and what a call raised.

    Args:
        record: None when there is none.
        verdict: how the run ended.
    """
    raised = {} if verdict.exception is None else {"exception": dict(verdict.exception)}
    return codec.pack({**(record or {}), **raised})


def ending_call(
    broker: Broker, number: int, fence: str, verdict: Verdict, outcome: bytes, attempt: int = 1, retry_delay_ms: int = 0
) -> Call | None:
    """Bind the script that a verdict asks for.

    Args:
        broker: of the queue.
        number: of the job.
        fence: of the run.
        verdict: how the run ended.
        outcome: what came out, packed.
        attempt: the run's number, from 1: the delay before the next grows with it.
        retry_delay_ms: base of that delay.

    Returns:
        The call; None when nothing is to be written.
    """
    match verdict.verb:
        case "complete":
            return broker.complete_call(number, fence, outcome, verdict.value)
        case "release":
            return broker.release_call(number, fence, verdict.detail)
        case "lose":
            return broker.lose_call(number, fence)
        case "fail":
            delay_ms = round(backoff(attempt, retry_delay_ms / 1000) * 1000) if verdict.retried else None
            detail = verdict.detail[:MAX_DETAIL]
            return broker.fail_call(number, fence, verdict.reason, detail, verdict.exit_code, outcome, delay_ms)
    return None
