"""How a run ended, and the call that tells the queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from foxqueue import codec
from foxqueue.broker import Broker
from foxqueue.processes import short_boot_id
from foxqueue.retry import Retries
from foxqueue.scripts import Call

Verb = Literal["complete", "fail", "release", "lose", "nothing"]
MAX_DETAIL = 400  # characters of a detail in the job's hash; the exit record has it all


@dataclass(frozen=True)
class Verdict:
    """How a run ends.

    Attributes:
        reason: of the closed list; of a release shutdown, later or paused.
        exit_code: the command's own, when it has one.
        value: what a call returned, packed.
        exception: what a call raised: type, message, traceback.
        wish: ``retry`` or ``fail`` when a call asked for another attempt or for none, else empty.
        delay_s: seconds before that attempt, or before a job given back for later; None for the job's own delay.
        no_room: the machine had no disk space to run it: no other is to be tried for a while.
    """

    verb: Verb
    reason: str = ""
    detail: str = ""
    exit_code: int | None = None
    value: bytes = b""
    exception: Mapping[str, str] | None = None
    wish: str = ""
    delay_s: float | None = None
    no_room: bool = False


def outcome_of(record: Mapping[str, Any] | None, verdict: Verdict) -> bytes:
    """What came out of a run, packed: the exit record, and what a call raised.

    Args:
        record: None when there is none.
        verdict: how the run ended.
    """
    raised = {} if verdict.exception is None else {"exception": dict(verdict.exception)}
    return codec.pack({**(record or {}), **raised})


def ending_call(
    broker: Broker, number: int, fence: str, verdict: Verdict, outcome: bytes, retries: Retries
) -> Call | None:
    """Bind the script that a verdict asks for. What chance adds to a delay is drawn here, so sending it again is safe.

    Args:
        broker: of the queue.
        number: of the job.
        fence: of the run.
        verdict: how the run ended.
        outcome: what came out, packed.
        retries: what the job says about further attempts.

    Returns:
        The call; None when nothing is to be written.
    """
    detail = verdict.detail[:MAX_DETAIL]
    match verdict.verb:
        case "complete":
            return broker.complete_call(number, fence, outcome, verdict.value)
        case "release":
            delay_s = retries.later_s() if verdict.delay_s is None else verdict.delay_s
            delay_ms = _ms(delay_s) if verdict.reason == "later" else None
            return broker.release_call(number, fence, verdict.reason, detail, delay_ms)
        case "lose":
            return broker.lose_call(number, fence, short_boot_id())
        case "fail":
            delay_ms = _delay_ms(verdict, retries)
            return broker.fail_call(number, fence, verdict.reason, detail, verdict.exit_code, outcome, delay_ms)
    return None


def _delay_ms(verdict: Verdict, retries: Retries) -> int | None:
    """How long the job waits before another attempt; None when there is to be none."""
    if verdict.wish == "fail":
        return None
    if verdict.wish == "retry" and verdict.delay_s is not None:
        return _ms(verdict.delay_s)
    if verdict.wish == "retry" or retries.answer(verdict.reason, verdict.exit_code):
        return _ms(retries.delay_s())
    return None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
