"""`foxqueue sweep`: one command with many parameters."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import Whole, client, common, json_option
from foxqueue.cli.scripted import Scripted, placed, words
from foxqueue.cli.submit_options import asked, job_options

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.grid import Plan
    from foxqueue.sweeping import Group, Request

SHOWN = 5  # runs that --dry-run prints
RANGES = 3  # of numbers, that the answer for people has

_LIMIT = Whole(1, 1_000_000)


@click.command(
    cls=Scripted,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    short_help="Put a command into the queue with many parameters.",
)
@click.option(
    "--param",
    "params",
    multiple=True,
    metavar="NAME=V1,V2,…",
    help="A parameter and its values, one line of CSV. May be repeated: every combination is a run.",
)
@click.option(
    "--param-file",
    "files",
    multiple=True,
    metavar="FILE",
    help=".csv with a header, a run a row; or .json, a list of objects (rows) or an object of lists (combinations).",
)
@click.option(
    "--each-line", "lines", metavar="FILE", help="A run for each line that is not blank, as {line}; - is stdin."
)
@click.option("--max-concurrent", type=_LIMIT, metavar="K", help="So many may run at once.")
@click.option(
    "--max-fails", type=_LIMIT, metavar="K", help="Pause the group after so many failures in a row, for one reason."
)
@click.option("--name-template", metavar="TEXT", help="Names of the runs, like bs-{bs}.")
@click.option("--dry-run", is_flag=True, help="Print how many runs there are, and the first ones; enqueue nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask where they are over 100,000.")
@job_options
@click.option("-q", "--quiet", is_flag=True, help="Print the group's name alone.")
@json_option
@common
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
@click.pass_context
def sweep(
    context: click.Context,
    /,
    argv: tuple[str, ...],
    params: tuple[str, ...],
    files: tuple[str, ...],
    lines: str | None,
    max_concurrent: int | None,
    max_fails: int | None,
    name_template: str | None,
    dry_run: bool,
    yes: bool,
    quiet: bool,
    as_json: bool,
    **_: Any,
) -> int:
    """Put a command into the queue with many parameters: all of its runs appear at once, or none.

    foxqueue sweep --param lr=1e-3,1e-4 --param bs=32,64 -- python train.py --lr {lr} --bs {bs}

    {name} stands for a parameter in every word of the command, {{name}} for the text {name}; other braces are what
    they are. Each run has its parameters as tags. All are in one group, of which foxqueue groups tells.

    It takes the options of submit, #FOX lines of a script too, but --unique, --if-exists, --script, --block and --wait.
    Where there is no room for all runs, it is refused.
    """
    from foxqueue.sweeping import MAX_RUNS, prepare

    if as_json and quiet:
        raise click.UsageError("--json goes not with --quiet: stdout carries one thing")
    clients = cache(client)  # the server is asked for once, and after the options were checked, if that can be

    def last() -> int:
        return clients().last().number

    with placed(context, last):
        options = asked(context, last)
        plan = _plan(words(context, argv, elsewhere="cwd" in options), params, files, lines, name_template)
    large = plan.total > MAX_RUNS
    if large and not dry_run and not yes and output.can_ask():
        yes = click.confirm(f"foxqueue: enqueue {plan.total:,} runs?", err=True)
        if not yes:
            output.say("nothing was enqueued")
            return 1
    if large and dry_run and not yes:
        return _show(plan, as_json)
    most = plan.total if yes else MAX_RUNS
    with placed(context, last):
        request = prepare(plan, options, max_concurrent=max_concurrent, max_fails=max_fails, max_runs=most)
    return _show(plan, as_json) if dry_run else _tell(_send(clients(), request), quiet, as_json)


def _plan(
    argv: Sequence[str], params: tuple[str, ...], files: tuple[str, ...], lines: str | None, name_template: str | None
) -> Plan:
    from foxqueue.grid import Plan, of_file, of_lines, of_option
    from foxqueue.sweeping import command

    axes = [of_option(text) for text in params] + [axis for path in files for axis in of_file(path)]
    axes += [of_lines(lines)] if lines is not None else []
    return Plan(command(argv), axes, name_template)


def _show(plan: Plan, as_json: bool) -> int:
    """Print the first runs."""
    runs = list(islice(plan.runs(), SHOWN))
    if as_json:
        shown = [{"command": run.argv, "name": run.name, "parameters": run.values} for run in runs]
        output.write_json({"total": plan.total, "runs": shown})
        return 0
    output.write(f"{_count(plan.total, 'run')}, none enqueued:\n")
    for run in runs:
        name = f"{run.name}: " if run.name else ""
        output.write(f"  {output.safe(name + shlex.join(run.argv))}\n")
    if plan.total > len(runs):
        output.write(f"  and {plan.total - len(runs):,} more\n")
    return 0


def _send(fox: Client, request: Request) -> Group:
    """Enqueue it, and say what is in the queue when that goes wrong."""
    from foxqueue.sweeping import send

    progress = _Progress()
    try:
        with progress:
            group = send(fox, request, progress)
    except BaseException as error:
        for note in getattr(error, "__notes__", ()):
            output.say(note)
        raise
    for warning in fox.warnings:
        output.say(warning)
    return group


class _Progress:
    """One line on a terminal that says how far it is; gone at the end."""

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._write("")

    def __call__(self, done: int, total: int) -> None:
        """So many of so many are enqueued."""
        self._write(f"{done:,} of {total:,} runs")

    def _write(self, text: str) -> None:
        if self._shown:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"\r\x1b[K{text}")
                sys.stderr.flush()


def _tell(group: Group, quiet: bool, as_json: bool) -> int:
    """Say which group it is."""
    numbers = [f"{some[0]}-{some[-1]}" if len(some) > 1 else str(some[0]) for some in group.numbers]

    def put() -> None:
        if as_json:
            output.write_json({"group": group.name, "total": group.total, "numbers": ",".join(numbers)})
        elif quiet:
            output.write(f"{group.name}\n")
        else:
            which = ",".join(numbers if len(numbers) <= RANGES else [*numbers[: RANGES - 1], "…", numbers[-1]])
            output.write(f"group {group.name}: {_count(group.total, 'job')} ({which})\n")

    if not output.hand_over(put, f"group {group.name} is in the queue, but its name"):
        return 1
    if not quiet and not as_json and output.on_terminal():
        output.say(f"foxqueue groups tells of it, foxqueue cancel --group {group.name} ends it")
    return 0


def _count(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")
