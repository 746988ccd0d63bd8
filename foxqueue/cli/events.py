"""The command events: the audit trail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from foxqueue.cli import output
from foxqueue.cli.options import JOB, Whole, client, common, json_option, one_job

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.trail import Event

INTERRUPTED = 130
_DEVICE = 12  # characters of a device that are shown, as in ls


def _job(text: str) -> int:
    """Read the number of a job; 0 for ``last``."""
    return one_job(text) or 0


@click.command(short_help="What happened: who did what, when and why.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--job", type=_job, metavar=JOB, help="Only what happened to this job.")
@click.option("--limit", type=Whole(min=1), default=100, show_default=True, help="How many to begin with.")
@json_option
@common
def events(follow: bool, job: int | None, limit: int, as_json: bool) -> int:
    """What happened, the newest last: transitions of jobs, pauses, changed settings; by whom and why.

    About 10,000 events are kept. --follow goes on over every restart of the server; with --json each event is then a
    line of its own.
    """
    fox = client()
    fox.look()
    job = fox.last().number if job == 0 else job
    if not follow:
        found = fox.inspector.trail.newest(limit, job)
        if as_json:
            output.write_json([event.to_dict() for event in found])
        else:
            output.write("".join(line(event) for event in found))
            if not found and job is not None:
                output.say(f"no events of job {job} are kept")
        return 0
    try:
        for event in _followed(fox, limit, job):
            output.write(json.dumps(event.to_dict()) + "\n" if as_json else line(event))
            output.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _followed(fox: Client, limit: int, job: int | None) -> Iterator[Event]:
    from foxqueue.following import Following

    following = Following(fox.broker, fox.inspector)
    trail = fox.inspector.trail
    last = following.patiently(trail.last, None)
    yield from following.patiently(partial(trail.newest, limit, job, last), None)
    for found in trail.follow(last, lambda ask: following.patiently(ask, None)):
        yield from (event for event in found if job is None or event.concerns(job))
        following.patiently(following.look, None)


def line(event: Event) -> str:
    """One event for people: ``… job 7  claim  pending -> running  by box-123 on SIM-0fd4655d``."""
    parts = [event.at or "?", _subject(event), event.name]
    if event.before or event.after:
        parts.append(f"{event.before or '-'} -> {event.after or '-'}")
    who = event.by or event.worker
    where = event.device if event.device != event.scope else None
    told = [f"by {who}" if who else "", f"on {where[:_DEVICE]}" if where else ""]
    more = [f"{name}={value}" for name, value in event.more.items()]
    parts += [event.reason or "", " ".join(filter(None, told)), " ".join(more)]
    return output.safe("  ".join(filter(None, parts))) + "\n"


def _subject(event: Event) -> str:
    if event.job is not None:
        last = event.job + (event.count or 1) - 1
        return f"job {event.job}" if last == event.job else f"jobs {event.job}-{last}"
    if event.scope is None:
        return "settings" if event.name == "configure" else "-"
    if event.scope == "*":
        return "the queue"
    return f"group {event.scope[1:]}" if event.scope.startswith("@") else f"device {event.scope[:_DEVICE]}"
