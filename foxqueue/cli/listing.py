"""Commands that show jobs: ls, show."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import JOB, Whole, client, common, json_option, one_job
from foxqueue.cli.pause import tell_paused
from foxqueue.cli.selecting import Filters, chosen, every, filters, say_unknown
from foxqueue.units import format_duration, format_memory

if TYPE_CHECKING:
    from foxqueue.client import Client, Job
    from foxqueue.inspector import Listing
    from foxqueue.job import JobView
    from foxqueue.selection import Selection

TAIL_LINES = 20


@click.command("ls", short_help="List jobs.")
@filters
@every
@click.option("--limit", type=Whole(min=1), default=50, show_default=True, help="How many at most.")
@click.argument("words", nargs=-1, metavar="[SEL]...")
@json_option
@common
def list_jobs(words: tuple[str, ...], filters: Filters, limit: int, as_json: bool) -> int:
    """List jobs: pending in the order in which they will run, scheduled, blocked, running, then ended, newest first.

    Higher priorities run first, and a level is worth as long a wait as the setting aging says (4 hours), so that old
    jobs overtake. SEL is a number, a range or several, like 3,5-8, or last, your newest.
    """
    selection = chosen(words, filters, needed=False)
    fox = client()
    fox.look()
    if selection.named:
        return _list_named(fox, selection, limit, as_json)
    listing = fox.listing(selection, limit + 1)  # one more tells whether there are more
    shown = listing.jobs[:limit]
    if as_json:
        output.write_json([job.to_dict() for job in shown])
    elif shown:
        job_table(shown)
    elif selection.filters:
        output.say(f"no such jobs in namespace {fox.config.namespace}")
    else:
        output.say(f"no jobs in namespace {fox.config.namespace}: foxqueue submit -- CMD puts one in")
    tell_paused(listing.paused, as_json)
    _tell_the_rest(listing, limit, filtered=bool(selection.filters))
    return 0


def _list_named(fox: Client, selection: Selection, limit: int, as_json: bool) -> int:
    from foxqueue.selection import find
    from foxqueue.submission import user

    found = list(find(fox.broker, fox.inspector, selection, (), user()))
    jobs = [job for _, job in found if job is not None]
    unknown = say_unknown(number for number, job in found if job is None)
    shown = [fox.inspector.job(job.number) if job.waiting else job for job in jobs[:limit]]  # with why they wait
    if as_json:
        output.write_json([job.to_dict() for job in shown])
    elif shown:
        job_table(shown)
    if len(jobs) > limit:
        output.say(f"the first {limit} of {len(jobs):,} jobs; --limit shows more")
    return 1 if unknown else 0


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


def job_table(jobs: Iterable[JobView]) -> None:
    """Print jobs, one a line."""
    headers = ["JOB", "NAME", "STATE", "PRIO", "USER", "DEVICE", "TIME", "WHY"]
    now = int(time.time() * 1000)
    output.table(headers, [_row(job, now) for job in jobs], right=("JOB", "PRIO", "TIME"))


def _row(job: JobView, now_ms: int) -> list[Any]:
    return [
        job.number,
        title(job),
        job.state,
        job.priority,
        job.user,
        ",".join(uuid[:12] for uuid in job.gpu_uuids) if not job.waiting else None,
        _duration(job, now_ms),
        _shortened(_why(job) or "", 120) or None,
    ]


def title(job: JobView) -> str:
    """What people know it by: its name, else the beginning of its command."""
    return job.name or _shortened(_command(job))


def _command(job: JobView) -> str:
    """As a shell would take it; a Python call as it was made."""
    return job.command[0] if job.spec.get("call") and job.command else shlex.join(job.command)


def _shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _duration(job: JobView, now_ms: int) -> str | None:
    """How long it has waited, runs, or ran."""
    begin = job.queued_ms if job.waiting else job.started_ms
    end = job.finished_ms if job.ended else now_ms
    if begin is None or end is None:
        return None
    return format_duration(max(end - begin, 0) / 1000)


def _why(job: JobView) -> str | None:
    if job.waiting:
        return f"{job.waiting_for}: {job.detail}" if job.waiting_for else job.detail
    if job.running:
        return _asked(job)
    return None if job.succeeded else ": ".join(part for part in (job.reason, job.detail) if part)


def _asked(job: JobView) -> str | None:
    """What its worker was asked to do."""
    if job.cancel_requested and not job.ended:
        return f"cancel requested by {job.cancel_requested}"
    if job.release_requested and job.running:
        return f"asked to go back into the queue: {job.release_requested}"
    return None


@click.command(short_help="All about one job.")
@click.argument("number", type=one_job, metavar=JOB)
@json_option
@common
def show(number: int | None, as_json: bool) -> int:
    """All about one job: why it waits or how it ended, and its last 20 lines. NUMBER may be last, your newest."""
    fox = client()
    fox.look()
    job = fox.job(number) if number else fox.last()
    if as_json:
        output.write_json(job.to_dict())
        return 0
    output.facts(_facts(job))
    write_indented(output.last_lines(job.logs(), TAIL_LINES))
    return 0


def write_indented(lines: Sequence[str]) -> None:
    """Print the end of a job's output after what is said of it."""
    if lines:
        output.write("\n" + "".join(f"  {line}\n" for line in lines))


def _facts(job: Job) -> dict[str, Any]:
    view = job.view
    spec = view.spec
    result = view.result
    limit = spec.get("time_limit_s")
    counted = f"{view.attempts}" + (f" of {view.retries + 1}" if view.retries else "")
    peak = None if view.reason == "launch_error" else result.get("max_rss_kib")  # that was the runner's own
    return {
        "job": view.number,
        "name": view.name,
        "group": view.group,
        "state": view.state + (f" ({view.reason})" if view.ended and view.reason else ""),
        "waits for": f"{view.waiting_for}: {view.detail}" if view.waiting_for else None,
        "detail": None if view.waiting_for else view.detail,
        "asked": _asked(view),
        **_conditions(view),
        "command": _command(view),
        "directory": spec.get("cwd"),
        "commit": _commit(view),
        "needs": _needs(view),
        "priority": view.priority,
        "time limit": format_duration(limit) if isinstance(limit, int | float) else None,
        "user": f"{view.user} on {view.submit_host}" if view.submit_host else view.user,
        "model type": view.model_type,
        "tags": " ".join(f"{name}={value}" for name, value in view.tags.items()),
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


def _needs(job: JobView) -> str:
    gpus = "a CPU slot" if job.gpus_wanted == 0 else f"{job.gpus_wanted} GPU"
    floor = f", {format_memory(job.gpu_memory_mib)} or more" if job.gpu_memory_mib else ""
    return gpus + floor + (", a CPU slot while there is no GPU" if job.no_gpu_ok else "")


def _conditions(job: JobView) -> dict[str, Any]:
    """When it may start, and what else holds it back or lets it go."""
    times = job.to_dict()
    after = ", ".join(f"{parent} ({condition})" for parent, condition in job.after.items() if condition != "ended")
    return {
        "held by": job.held,
        "after": after,
        "starts at": times["due_at"] if job.waiting else None,
        "expires": times["expires_at"] if job.waiting else None,
        "unique key": job.unique,
        "notifies": _notified(job.spec.get("notify")),
    }


def _notified(notify: Any) -> str | None:
    """What is told of the end, a URL without its password."""
    from foxqueue.urls import hide_password
    from foxqueue.wishes import is_url

    if not isinstance(notify, str):
        return None
    return hide_password(notify) if is_url(notify) else notify


def _commit(job: JobView) -> str | None:
    commit, branch = job.git.get("commit"), job.git.get("branch")
    if not commit:
        return None
    where = f" on {branch}" if branch else ""
    return f"{commit}{where}{', with changes that are not committed' if job.git.get('dirty') else ''}"
