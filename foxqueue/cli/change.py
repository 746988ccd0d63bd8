"""Commands that change jobs: cancel, requeue, hold, unhold, reprioritize."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from foxqueue.cli import output
from foxqueue.cli.listing import job_table
from foxqueue.cli.options import Once, client, common, json_option
from foxqueue.cli.report import Report
from foxqueue.cli.selecting import Filters, Target, agreed, changing, chosen, targets, views
from foxqueue.cli.submit import DETACHED
from foxqueue.errors import InvalidInput
from foxqueue.states import PENDING, RUNNING, WAITING

if TYPE_CHECKING:
    from foxqueue.changing import Change
    from foxqueue.client import Client
    from foxqueue.job import JobView
    from foxqueue.selection import Selection


class _Work(NamedTuple):
    """What one command line asks for, once it is clear that it is meant.

    Attributes:
        jobs: to change, in the order of a listing or as they were named.
        report: says what became of them.
    """

    fox: Client
    change: Change
    jobs: list[Target]
    report: Report

    def carry_out(self, jobs: list[Target]) -> list[Any]:
        """Change these jobs in this order, and tell. Returns the outcomes of those that were changed."""
        from foxqueue.changing import change_many
        from foxqueue.submission import user

        pairs = ((job.number, job.born) for job in jobs)
        return self.report.take(change_many(self.fox.broker, self.change, pairs, user()))


def _work(
    change: Change, selection: Selection, say: Callable[[JobView], str], dry_run: bool, yes: bool, as_json: bool
) -> _Work:
    """Find the jobs, and ask where they are many.

    Raises:
        click.exceptions.Exit: there is nothing to do, or it was a dry run.
        InvalidInput: they are many, and nobody can be asked.
    """
    fox = client()
    fox.look()
    jobs, unknown = targets(fox, selection, change.states, change.sensible)
    if dry_run:
        raise click.exceptions.Exit(_show(fox, change, jobs, as_json) or int(unknown > 0))
    if not jobs:
        if not unknown:
            output.say(f"no job that these filters choose can be {change.done}")
        if as_json:
            output.write_json([])
        raise click.exceptions.Exit(1)
    if not agreed(change.verb, len(jobs), yes):
        output.say("nothing was changed")
        raise click.exceptions.Exit(1)
    if change.verb == "requeue" and not selection.named:
        jobs.sort()  # by number: parents before their children
    report = Report(fox, change, jobs, say, by_filter=not selection.named, as_json=as_json)
    report.exit_code = int(unknown > 0)
    return _Work(fox, change, jobs, report)


def _show(fox: Client, change: Change, jobs: list[Target], as_json: bool) -> int:
    found = views(fox, jobs)
    possible = [view for view in found if change.possible(view)]
    for view in found:
        if not change.possible(view):
            output.say(f"job {view.number} cannot be {change.done}: it is {view.state}")
    if as_json:
        output.write_json([view.to_dict() for view in fox.inspector.explained(possible)])
    elif possible:
        job_table(fox.inspector.explained(possible))
    output.say(f"{len(possible):,} jobs would be {change.done}; nothing was changed")
    return int(len(possible) < len(jobs) or not jobs)


def _state(job: JobView) -> str:
    return job.state


def _place(job: JobView) -> str:
    """Where it waits; one that was started since was pending."""
    return job.state if job.waiting else PENDING


@click.command(short_help="Cancel jobs and wait until they have ended.")
@changing
@json_option
@common
def cancel(words: tuple[str, ...], filters: Filters, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Cancel jobs and wait until they have ended: TERM, after 10 seconds KILL, the whole tree.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean jobs that have not ended.

    Exits with 0 when all are cancelled, those that were before too; 1 when a job that was named had ended otherwise or
    is unknown, or when no job is meant. Ctrl-C stops waiting (exit code 130); what was asked to stop will end.
    """
    from foxqueue.changing import CANCEL
    from foxqueue.client import Job

    work = _work(CANCEL, chosen(words, filters), _state, dry_run, yes, as_json)
    with work.report as report:
        # Those that wait first: the end of a running one would start them.
        asked = [outcome for outcome in work.carry_out(sorted(work.jobs, key=_runs)) if outcome.word == "ok"]
        stopping = views(work.fox, [Target(outcome.number, outcome.born, RUNNING) for outcome in asked])
        jobs = [Job(work.fox, view) for view in stopping]
        try:
            work.fox.wait(jobs, on_end=report.ended)
        except KeyboardInterrupt:
            report.left(jobs)
            output.say("not waiting any longer; what was asked to stop will end")
            return DETACHED
    return report.exit_code


def _runs(job: Target) -> bool:
    return job.state == RUNNING


@click.command(short_help="Put failed or cancelled jobs back into the queue.")
@click.option("--cascade", is_flag=True, help="Then their children that were cancelled because of them, and theirs.")
@changing
@json_option
@common
def requeue(words: tuple[str, ...], filters: Filters, cascade: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Put failed or cancelled jobs back into the queue, behind what waits with their priority.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean failed and cancelled jobs.

    They keep number, command and files; attempts and losses are counted anew, result and exit code are forgotten.
    With --cascade a job that is named may wait or run already. Exits with 1 when one cannot be requeued, 75 when there
    is no room for one; the others are.
    """
    from foxqueue import changing as rules
    from foxqueue.submission import user

    work = _work(rules.REQUEUE, chosen(words, filters), _place, dry_run, yes, as_json)
    back = [job.number for job in work.jobs if cascade and job.state in WAITING | {RUNNING}]
    jobs = [job for job in work.jobs if job.number not in set(back)]
    with work.report as report:
        back += [outcome.number for outcome in work.carry_out(jobs)]
        if cascade:
            report.take(rules.cascade(work.fox.broker, work.fox.inspector, back, user()))
    return report.exit_code


@click.command(short_help="Keep waiting jobs from starting.")
@changing
@json_option
@common
def hold(words: tuple[str, ...], filters: Filters, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Keep jobs that wait from starting, until unhold: their state is blocked then. They keep their place.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean jobs that wait and are not held. Exits with 1 when one that was named does not wait.
    """
    from foxqueue.changing import HOLD

    work = _work(HOLD, chosen(words, filters), lambda _: "held", dry_run, yes, as_json)
    with work.report as report:
        work.carry_out(work.jobs)
    return report.exit_code


@click.command(short_help="Let held jobs go.")
@changing
@json_option
@common
def unhold(words: tuple[str, ...], filters: Filters, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Let held jobs go: each takes its old place, or goes on waiting for the jobs it depends on.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean jobs that are held. Exits with 1 when one that was named is not.
    """
    from foxqueue.changing import UNHOLD

    work = _work(UNHOLD, chosen(words, filters), _place, dry_run, yes, as_json)
    with work.report as report:
        work.carry_out(work.jobs)
    return report.exit_code


class _Reprioritize(Once):
    """Refuses a priority before --front, which would be taken for a job: click forgets what stood where."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with what stands before --front looked at."""
        before = args[: args.index("--front")] if "--front" in args else []
        rest = super().parse_args(ctx, args)
        if not ctx.params.get("front"):
            return rest
        given, _, _ = self.make_parser(click.Context(self)).parse_args(list(before))
        first = given.get("words")
        if isinstance(first, tuple | list) and first and _is_priority(first[0]):
            raise click.UsageError(
                f"{first[0]} before --front looks like a priority: give a priority or --front; a job with that number "
                "stands behind --front",
                ctx,
            )
        return rest


def _is_priority(word: str) -> bool:
    from foxqueue.units import parse_priority

    with contextlib.suppress(InvalidInput):
        return parse_priority(word) >= 0
    return False


@click.command(cls=_Reprioritize, short_help="Give jobs another priority, or the first place.")
@click.option("--front", is_flag=True, help="Before everything that is pending now, instead of a priority.")
@changing
@json_option
@common
def reprioritize(words: tuple[str, ...], filters: Filters, front: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Give jobs another priority, or the first place.

    Write foxqueue reprioritize 8 SEL... or foxqueue reprioritize --front SEL...

    A priority is 0 to 9, or low (2), medium (5), high (8). Higher runs first; a level is a head start in time, as long
    as the setting aging says (4 hours), so that an old low job overtakes. ls shows the order.

    SEL is a number, a range or several, like 3,5-8, or last, your newest; or choose by the options, of which all must
    hold: they mean jobs that have not ended, with --front those that are pending or scheduled. Exits with 1 when one
    that was named cannot be moved.
    """
    from foxqueue.changing import reprioritizing
    from foxqueue.units import parse_priority

    if front:
        priority, said = None, "at the front"
    else:
        if not words:
            raise InvalidInput("give a priority before the jobs, like foxqueue reprioritize 8 42, or --front")
        priority = parse_priority(words[0])
        words, said = words[1:], f"priority {priority}"
    work = _work(reprioritizing(priority, front), chosen(words, filters), lambda _: said, dry_run, yes, as_json)
    with work.report as report:
        # Each goes before all that are pending then: the last one sent comes first.
        work.carry_out(work.jobs[::-1] if front else work.jobs)
    return report.exit_code
