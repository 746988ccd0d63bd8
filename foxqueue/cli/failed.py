"""The command `failed`: dead letters, with how their runs ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.listing import title, write_indented
from foxqueue.cli.options import Whole, client, common, json_option
from foxqueue.cli.selecting import Filters, chosen, every, filters, say_unknown
from foxqueue.errors import InvalidInput
from foxqueue.job import rfc3339
from foxqueue.states import FAILED
from foxqueue.units import format_duration

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.job import EndedRun, JobView
    from foxqueue.selection import Selection


@click.command(short_help="Why jobs failed.")
@click.option("--limit", type=Whole(min=1), default=20, show_default=True, help="How many jobs at most.")
@click.option("--lines", type=Whole(0, 1000), default=5, show_default=True, help="How many last lines of output.")
@click.argument("words", nargs=-1, metavar="[SEL]...")
@filters
@every
@json_option
@common
def failed(words: tuple[str, ...], filters: Filters, limit: int, lines: int, as_json: bool) -> int:
    """Failed jobs, the newest first: the reason, how each run ended, and the last lines of output.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold. Without any of that all failed jobs. They are kept as long as the settings retain_failed and
    retain_failed_count say; foxqueue requeue puts them back into the queue.

    Exits with 1 when a job that was named has not failed or is unknown.
    """
    selection = chosen(words, filters, needed=False)
    others = [state for state in selection.states if state != FAILED]
    if others:
        raise InvalidInput(f"failed shows failed jobs alone: foxqueue ls --state {others[0]} lists the others")
    fox = client()
    fox.look()
    numbers, refused = _numbers(fox, selection)
    shown = list(islice(numbers, limit + 1))
    found: list[dict[str, Any]] = []
    for at, number in enumerate(shown[:limit]):
        job = fox.inspector.job(number)
        tail = output.last_lines(b"".join(piece.data for piece in fox.inspector.log(number)), lines) if lines else []
        if as_json:
            found.append({**job.to_dict(), "history": [_run_dict(run) for run in job.history], "output": tail})
        else:
            output.write("\n" if at else "")
            _write(job, tail)
    if as_json:
        output.write_json(found)
    elif not shown and not refused:
        output.say("no such jobs" if selection else "no job has failed")
    if len(shown) > limit:
        output.say(f"the first {limit} of them; --limit shows more")
    return 1 if refused else 0


def _numbers(fox: Client, selection: Selection) -> tuple[Iterator[int], bool]:
    """Numbers of the failed jobs that are meant, and whether some that were named are none."""
    from foxqueue.selection import find
    from foxqueue.submission import user

    found = find(fox.broker, fox.inspector, selection, {FAILED}, user())
    if not selection.named:
        return (number for number, _ in found), False
    read = list(found)
    others = [job for _, job in read if job is not None and job.state != FAILED]
    for job in others:
        output.say(f"job {job.number} has not failed: it is {job.state}")
    unknown = say_unknown(number for number, job in read if job is None)
    return (job.number for _, job in read if job is not None and job.state == FAILED), bool(unknown or others)


def _write(job: JobView, tail: list[str]) -> None:
    output.write(output.safe(f"job {job.number}  {title(job)}") + "\n")
    output.write(output.safe(f"  {job.reason}" + (f": {job.detail}" if job.detail else "")) + "\n")
    for run in job.history:
        output.write(output.safe("  " + _run_text(run)) + "\n")
    write_indented(tail)


def _run_text(run: EndedRun) -> str:
    """``attempt 1 on box, 3m04s until 2026-11-30T16:25:01.123Z: exit_code, exited with code 3``."""
    took = format_duration((run.ended_ms - run.started_ms) / 1000) if run.ended_ms and run.started_ms else "some time"
    detail = f", {run.detail}" if run.detail else ""
    device = f" ({run.device[:12]})" if run.device else ""
    attempt = "a run" if run.attempt is None else f"attempt {run.attempt}"
    return f"{attempt} on {run.host or '?'}{device}, {took} until {rfc3339(run.ended_ms) or '?'}: {run.reason}{detail}"


def _run_dict(run: EndedRun) -> dict[str, Any]:
    return {
        "attempt": run.attempt,
        "fence": run.fence,
        "started_at": rfc3339(run.started_ms),
        "ended_at": rfc3339(run.ended_ms),
        "host": run.host or None,
        "device": run.device or None,
        "how": run.how,
        "reason": run.reason,
        "exit_code": run.exit_code,
        "detail": run.detail or None,
    }
