"""Commands that follow jobs: logs, wait."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from foxqueue.cli import output
from foxqueue.cli.options import JOB, client, common, duration, json_option, one_job
from foxqueue.cli.pause import tell_waiting
from foxqueue.cli.selecting import SOME, Filters, chosen, selectors, targets, views
from foxqueue.cli.submit import DETACHED, how_it_ended, stream, whole_output
from foxqueue.states import RUNNING, STATES, WAITING

if TYPE_CHECKING:
    from foxqueue.client import Client, Job


@click.command(short_help="A job's output.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until the job has ended, over all its attempts; of a fast writer the last 64 KiB.",
)
@click.argument("number", type=one_job, metavar=JOB)
@json_option
@common
def logs(number: int | None, follow: bool, as_json: bool) -> int:
    """A job's output, byte for byte: the last 64 KiB, both streams as they came. NUMBER may be last, your newest."""
    if follow and as_json:
        raise click.UsageError("--json goes not with --follow: output is followed byte for byte")
    fox = client()
    job = fox.job(number) if number else fox.last()
    if follow:
        return _follow(fox, job)
    pieces = fox.inspector.log(job.number)
    data = b"".join(piece.data for piece in pieces)
    if as_json:
        output.write_json({"number": job.number, "state": job.state, "output": data.decode("utf-8", "replace")})
        return 0
    if pieces and pieces[0].offset:
        where = whole_output(fox, job, pieces[0].fence)
        output.say(f"the first {pieces[0].offset:,} bytes are not kept here; {where}")
    if not pieces:
        output.say(f"job {job.number} has no output" + ("" if job.ended else f" yet: it is {job.state}"))
    output.write_bytes(data)
    return 0


def _follow(fox: Client, job: Job) -> int:
    try:
        stream(fox, job)
    except KeyboardInterrupt:
        if not job.ended:
            output.say(f"job {job.number} goes on; foxqueue cancel {job.number} ends it")
        return DETACHED
    if not job.succeeded:
        output.say(how_it_ended(job))
    return 0


@click.command(short_help="Wait until jobs have ended.")
@click.option("--timeout", type=duration, metavar="TIME", help="Give up after this time, like 30m, with exit code 124.")
@selectors
@json_option
@common
def wait(words: tuple[str, ...], filters: Filters, timeout: float | None, as_json: bool) -> int:
    """Wait until jobs have ended. Exits with 0 when all succeeded, 1 when one did not, 124 when the time is over.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean jobs that have not ended, with --group or --state those that have too. Jobs that come later are not
    waited for. Exits with 1, too, when a number is unknown; with 0 when the options mean no job that is there.

    Ctrl-C stops waiting (exit code 130); the jobs go on.
    """
    from foxqueue.client import Job

    selection = chosen(words, filters)
    states = STATES if selection.group or selection.states else WAITING | {RUNNING}
    fox = client()
    found, unknown = targets(fox, selection, states, lambda _: True)
    jobs = [Job(fox, view) for view in views(fox, found)]
    if not jobs and not unknown:
        output.say("there is nothing to wait for")
    told = _Ends(quiet=as_json, many=len(jobs) > SOME)
    try:
        if jobs and not unknown:
            if not as_json and any(job.waiting for job in jobs):
                tell_waiting(fox)
            fox.wait(jobs, timeout, on_end=told.add)
    except KeyboardInterrupt:
        output.say("not waiting any longer; the jobs go on")
        return DETACHED
    finally:
        if as_json:
            output.write_json([job.to_dict() for job in jobs])
        else:
            told.sum()
    if unknown:
        return 1
    bad = [job for job in jobs if not job.succeeded]
    for job in bad[:SOME]:
        output.say(how_it_ended(job))
    if len(bad) > SOME:
        output.say(f"and {len(bad) - SOME:,} more did not succeed")
    return 1 if bad else 0


class _Ends:
    """Tells jobs as they end, or their sum where they are many."""

    def __init__(self, *, quiet: bool, many: bool) -> None:
        self._quiet = quiet
        self._many = many
        self._sums: Counter[str] = Counter()

    def add(self, job: Job) -> None:
        """One has ended."""
        if self._many:
            self._sums[job.state] += 1
        elif not self._quiet:
            output.write(f"{job.number} {job.state}\n")

    def sum(self) -> None:
        """All have, or nobody waits any longer."""
        if self._sums:
            output.write(", ".join(f"{count:,} {state}" for state, count in self._sums.items()) + "\n")
