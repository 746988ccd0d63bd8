"""The command groups: what stands in the queue as one."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import Whole, client, common, json_option
from foxqueue.cli.pause import tell_paused

if TYPE_CHECKING:
    from foxqueue.groups import GroupView


@click.command(short_help="List groups of jobs, such as sweeps.")
@click.argument("name", required=False)
@click.option("--limit", type=Whole(min=1), default=50, show_default=True, help="How many at most.")
@json_option
@common
def groups(name: str | None, limit: int, as_json: bool) -> int:
    """List groups of jobs, the newest first, or the one called NAME: how many of its jobs stand where.

    A group is open, paused, or filling: its jobs are still being submitted, and seen when all of them are there. ls,
    wait, cancel, requeue and pause take --group NAME.
    """
    from foxqueue.groups import group_dict
    from foxqueue.job import rfc3339

    fox = client()
    fox.look()
    found = [fox.inspector.group(name)] if name is not None else list(islice(fox.inspector.groups(), limit + 1))
    shown = found[:limit]
    if as_json:
        output.write_json([group_dict(group, rfc3339(group.created_ms)) for group in shown])
        return 0
    headers = ["GROUP", "TOTAL", "WAITING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "STATE", "DETAIL"]
    if shown:
        output.table(headers, [_row(group) for group in shown], right=headers[1:-2])
    else:
        output.say(f"no groups in namespace {fox.config.namespace}: foxqueue sweep makes one, and submit --group")
    if len(found) > limit:
        output.say(f"the newest {limit}; --limit shows more")
    tell_paused(fox.inspector.paused(), as_json)
    return 0


def _row(group: GroupView) -> list[Any]:
    details = [
        f"by {group.paused}" if group.paused is not None else "",
        f"at most {group.max_concurrent} at once" if group.max_concurrent else "",
        f"pauses after {group.max_fails} failures in a row" if group.max_fails else "",
    ]
    counts = [group.total, group.waiting, group.running, group.succeeded, group.failed, group.cancelled]
    return [group.name, *counts, group.state, "; ".join(filter(None, details))]
