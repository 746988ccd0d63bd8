"""Commands about jobs: ls, show, logs, cancel, wait."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import Whole, client, common, duration, job_number, json_option
from foxqueue.cli.submit import DETACHED, how_it_ended, stream, whole_output
from foxqueue.states import STATES
from foxqueue.units import format_duration, format_memory

if TYPE_CHECKING:
    from foxqueue.client import Client, Job
    from foxqueue.inspector import Listing

TAIL_LINES = 20


@click.command("ls", short_help="List jobs.")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated.")
@click.option("--name", metavar="PATTERN", help="Only names that match, with * and ?.")
@click.option("--mine", is_flag=True, help="Only those that you submitted.")
@click.option("--limit", type=Whole(min=1), default=50, show_default=True, help="How many at most.")
@json_option
@common
def list_jobs(states: tuple[str, ...], name: str | None, mine: bool, limit: int, as_json: bool) -> int:
    """List jobs: pending in the order in which they would run, scheduled, running, then ended, newest first."""
    fox = client()
    fox.look()
    listing = fox.listing(states, name, mine, limit + 1)  # one more tells whether there are more
    shown = listing.jobs[:limit]
    if as_json:
        output.write_json([job.to_dict() for job in shown])
    elif shown:
        headers = ["JOB", "NAME", "STATE", "PRIO", "USER", "DEVICE", "TIME", "WHY"]
        now = int(time.time() * 1000)
        output.table(headers, [_row(job, now) for job in shown], right=("JOB", "PRIO", "TIME"))
    elif output.on_terminal():
        output.say("no such jobs" if states or name or mine else "no jobs: foxqueue submit -- CMD puts one in")
    _tell_the_rest(listing, limit, filtered=bool(states or name or mine))
    return 0


def _tell_the_rest(listing: Listing, limit: int, filtered: bool) -> None:
    if not listing.complete:
        output.say("the search stopped after the first 20,000 jobs; there may be more matches")
    elif len(listing.jobs) <= limit:
        return
    elif filtered:
        output.say(f"the first {limit} of the matches; --limit shows more")
    else:
        groups = ", ".join(f"{count:,} {name}" for name, count in listing.counts.items() if count)
        total = sum(listing.counts.values())
        output.say(f"the first {limit} of {total:,} jobs ({groups}); --limit and --state choose others")


def _row(job: Any, now_ms: int) -> list[Any]:
    return [
        job.number,
        job.name or _shortened(_command(job)),
        job.state,
        job.priority,
        job.user,
        ",".join(uuid[:12] for uuid in job.gpu_uuids) if not job.waiting else None,
        _duration(job, now_ms),
        _shortened(_why(job) or "", 120) or None,
    ]


def _command(job: Any) -> str:
    """As a shell would take it; a Python call as it was made."""
    return job.command[0] if job.spec.get("call") and job.command else shlex.join(job.command)


def _shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _duration(job: Any, now_ms: int) -> str | None:
    """How long it has waited, runs, or ran."""
    begin = job.queued_ms if job.waiting else job.started_ms
    end = job.finished_ms if job.ended else now_ms
    if begin is None or end is None:
        return None
    return format_duration(max(end - begin, 0) / 1000)


def _why(job: Any) -> str | None:
    if job.waiting:
        return f"{job.waiting_for}: {job.detail}" if job.waiting_for else job.detail
    if job.running:
        return f"cancel requested by {job.cancel_requested}" if job.cancel_requested else None
    return None if job.succeeded else ": ".join(part for part in (job.reason, job.detail) if part)


@click.command(short_help="All about one job.")
@click.argument("number", type=job_number, metavar="NUMBER")
@json_option
@common
def show(number: int, as_json: bool) -> int:
    """All about one job: why it waits or how it ended, and its last 20 lines."""
    fox = client()
    fox.look()
    job = fox.job(number)
    if as_json:
        output.write_json(job.to_dict())
        return 0
    output.facts(_facts(job))
    lines = output.last_lines(job.logs(), TAIL_LINES)
    if lines:
        output.write("\n" + "".join(f"  {line}\n" for line in lines))
    return 0


def _facts(job: Job) -> dict[str, Any]:
    view = job.view
    spec = view.spec
    result = view.result
    limit = spec.get("time_limit_s")
    gpus = "a CPU slot" if view.gpus_wanted == 0 else f"{view.gpus_wanted} GPU"
    floor = f", {format_memory(view.gpu_memory_mib)} or more" if view.gpu_memory_mib else ""
    tags = " ".join(f"{name}={value}" for name, value in view.tags.items())
    counted = f"{view.attempts}" + (f" of {view.retries + 1}" if view.retries else "")
    peak = None if view.reason == "launch_error" else result.get("max_rss_kib")  # that was the runner's own
    return {
        "job": view.number,
        "name": view.name,
        "state": view.state + (f" ({view.reason})" if view.ended and view.reason else ""),
        "waits for": f"{view.waiting_for}: {view.detail}" if view.waiting_for else None,
        "detail": None if view.waiting_for else view.detail,
        "cancel": f"requested by {view.cancel_requested}" if view.cancel_requested else None,
        "command": _command(view),
        "directory": spec.get("cwd"),
        "needs": gpus + floor,
        "priority": view.priority,
        "time limit": format_duration(limit) if isinstance(limit, int | float) else None,
        "user": f"{view.user} on {view.submit_host}" if view.submit_host else view.user,
        "model type": view.model_type,
        "tags": tags,
        "description": view.description,
        "device": ", ".join(view.gpu_uuids),
        "worker": f"{view.worker} on {view.host}" if view.worker else None,
        "attempts": counted,
        "losses": view.losses or None,
        "exit code": view.exit_code,
        "peak memory": format_memory(peak // 1024) if isinstance(peak, int) and peak else None,
        "submitted": view.submitted_at,
        "started": view.started_at,
        "finished": view.finished_at,
        "took": _duration(view, 0) if view.ended else None,
    }


@click.command(short_help="A job's output.")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until the job has ended, over all its attempts; of a fast writer the last 64 KiB.",
)
@click.argument("number", type=job_number, metavar="NUMBER")
@json_option
@common
def logs(number: int, follow: bool, as_json: bool) -> int:
    """A job's output, byte for byte: the last 64 KiB, both streams as they came."""
    if follow and as_json:
        raise click.UsageError("--json goes not with --follow: output is followed byte for byte")
    fox = client()
    job = fox.job(number)
    if follow:
        return _follow(fox, job)
    pieces = fox.inspector.log(number)
    data = b"".join(piece.data for piece in pieces)
    if as_json:
        output.write_json({"number": number, "state": job.state, "output": data.decode("utf-8", "replace")})
        return 0
    if pieces and pieces[0].offset:
        where = whole_output(fox, job, pieces[0].fence)
        output.say(f"the first {pieces[0].offset:,} bytes are not kept here; {where}")
    if not pieces:
        output.say(f"job {number} has no output" + ("" if job.ended else f" yet: it is {job.state}"))
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


@click.command(short_help="Cancel jobs and wait until they have ended.")
@click.argument("numbers", type=job_number, nargs=-1, required=True, metavar="NUMBER...")
@json_option
@common
def cancel(numbers: tuple[int, ...], as_json: bool) -> int:
    """Cancel jobs and wait until they have ended: TERM, after 10 seconds KILL, the whole tree.

    Exits with 0 when all are cancelled, those that were before too; 1 when one had ended otherwise or is unknown.
    Ctrl-C stops waiting (exit code 130); what was asked to stop will end.
    """
    fox = client()
    accepted, refused = _ask_to_cancel(fox, dict.fromkeys(numbers))
    try:
        fox.wait(accepted, on_end=None if as_json else _tell_end)
    except KeyboardInterrupt:
        output.say("not waiting any longer; what was asked to stop will end")
        return DETACHED
    finally:
        if as_json:
            output.write_json([job.to_dict() for job in accepted])
    return 1 if refused or any(job.state != "cancelled" for job in accepted) else 0


def _ask_to_cancel(fox: Client, numbers: dict[int, None]) -> tuple[list[Job], bool]:
    from foxqueue.errors import JobGone, JobNotFound, NotCancelled

    jobs, unknown = _find(fox, numbers)
    accepted: list[Job] = []
    # Those that wait first: the end of a running one would start them.
    for job in sorted(jobs, key=lambda job: not job.waiting):
        try:
            accepted.append(job.cancel())
        except (JobNotFound, JobGone, NotCancelled) as error:
            output.say(str(error))
    return accepted, unknown or len(accepted) < len(jobs)


@click.command(short_help="Put failed or cancelled jobs back into the queue.")
@click.argument("numbers", type=job_number, nargs=-1, required=True, metavar="NUMBER...")
@json_option
@common
def requeue(numbers: tuple[int, ...], as_json: bool) -> int:
    """Put failed or cancelled jobs back into the queue, behind what waits with their priority.

    They keep number, command and files; attempts and losses are counted anew, result and exit code are forgotten.
    Exits with 1 when one cannot be requeued; the others are.
    """
    from foxqueue.errors import JobGone, JobNotFound, NotRequeued

    fox = client()
    accepted: list[Job] = []
    for number in dict.fromkeys(numbers):
        try:
            accepted.append(fox.job(number).requeue())
        except (JobNotFound, JobGone, NotRequeued) as error:
            output.say(str(error))
        else:
            if not as_json:
                output.write(f"{number} pending\n")
    if as_json:
        output.write_json([job.to_dict() for job in accepted])
    return 0 if len(accepted) == len(set(numbers)) else 1


def _tell_end(job: Job) -> None:
    output.write(f"{job.number} {job.state}\n")


@click.command(short_help="Wait until jobs have ended.")
@click.option("--timeout", type=duration, metavar="TIME", help="Give up after this time, like 30m, with exit code 124.")
@click.argument("numbers", type=job_number, nargs=-1, required=True, metavar="NUMBER...")
@json_option
@common
def wait(numbers: tuple[int, ...], timeout: float | None, as_json: bool) -> int:
    """Wait until jobs have ended. Exits with 0 when all succeeded, 1 when one did not, 124 when the time is over.

    Ctrl-C stops waiting (exit code 130); the jobs go on.
    """
    fox = client()
    jobs, unknown = _find(fox, dict.fromkeys(numbers))
    try:
        if not unknown:
            fox.wait(jobs, timeout, on_end=None if as_json else _tell_end)
    except KeyboardInterrupt:
        output.say("not waiting any longer; the jobs go on")
        return DETACHED
    finally:
        if as_json:
            output.write_json([job.to_dict() for job in jobs])
    if unknown:
        return 1
    for job in jobs:
        if not job.succeeded:
            output.say(how_it_ended(job))
    return 0 if all(job.succeeded for job in jobs) else 1


def _find(fox: Client, numbers: dict[int, None]) -> tuple[list[Job], bool]:
    from foxqueue.errors import JobNotFound

    found: list[Job] = []
    for number in numbers:
        try:
            found.append(fox.job(number))
        except JobNotFound as error:
            output.say(str(error))
    return found, len(found) < len(numbers)
