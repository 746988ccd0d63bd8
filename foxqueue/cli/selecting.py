"""What the commands about several jobs share: how jobs are chosen, and whether so many are meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from foxqueue.cli import output
from foxqueue.errors import InvalidInput
from foxqueue.states import STATES

if TYPE_CHECKING:
    from foxqueue.client import Client
    from foxqueue.job import JobView
    from foxqueue.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])
Filters = Mapping[str, Any]

SOME = 20  # jobs that are told one by one, and changed without asking

_FILTERS = (
    click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these; may be repeated."),
    click.option("--name", metavar="PATTERN", help="Only names that match, with * and ?."),
    click.option("--tag", "tags", multiple=True, metavar="K[=V]", help="Only with this tag; may be repeated."),
    click.option("--group", metavar="NAME", help="Only those of this group."),
    click.option("--mine", is_flag=True, help="Only those that you submitted."),
)
every = click.option("--all", "every", is_flag=True, help="All of the queue.")


def filters(command: F) -> F:
    """Add the filters; the command gets them as ``filters``, for :func:`chosen`."""

    @wraps(command)
    def filled(*args: Any, **given: Any) -> Any:
        names = ("states", "name", "tags", "group", "mine", "every")
        chosen_by = {name: given.pop(name) for name in names if name in given}
        return command(*args, filters=chosen_by, **given)

    made: Any = filled
    for option in reversed(_FILTERS):
        made = option(made)
    found: F = made
    return found


def selectors(command: F) -> F:
    """Add numbers, filters and --all; the command gets ``words`` and ``filters``, for :func:`chosen`."""
    return click.argument("words", nargs=-1, metavar="SEL...")(filters(every(command)))


def changing(command: F) -> F:
    """The same for a command that changes jobs, with --dry-run and --yes."""
    dry_run = click.option("--dry-run", is_flag=True, help="Print which jobs they are, and change nothing.")
    yes = click.option("-y", "--yes", is_flag=True, help=f"Do not ask where they are over {SOME}.")
    return selectors(dry_run(yes(command)))


def chosen(words: Sequence[str], filters: Filters, needed: bool = True) -> Selection:
    """The selection that a command line means.

    Args:
        words: numbers, ranges, ``last``.
        filters: as :func:`filters` gives them.
        needed: there must be something.

    Raises:
        InvalidInput: it is malformed, or nothing where something is needed.
    """
    from foxqueue.selection import HOW, select
    from foxqueue.submission import user

    options = dict(filters)
    options["user"] = user() if options.pop("mine") else None
    options["tags"] = _tags(options["tags"])
    found = select(words, **options)
    if needed and not found:
        raise InvalidInput(f"which jobs? {HOW}")
    return found


def _tags(pairs: Iterable[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not name:
            raise InvalidInput(f"tag {pair!r} is not understood: write NAME, or NAME=VALUE, like model=dqn")
        found[name] = value if separator else None
    return found


class Target(NamedTuple):
    """A job to change: so little of it that there may be a million."""

    number: int
    born: str
    state: str


def targets(
    fox: Client, selection: Selection, states: Iterable[str], fits: Callable[[JobView], bool]
) -> tuple[list[Target], int]:
    """The jobs of a selection; says which numbers have none.

    Args:
        fox: the client.
        selection: which.
        states: those among which filters choose.
        fits: and what must be true of a job for that; a number means its job in any case.

    Returns:
        The jobs, and how many numbers have none.
    """
    from foxqueue.selection import find
    from foxqueue.submission import user

    found: list[Target] = []
    unknown: list[int] = []
    for number, job in find(fox.broker, fox.inspector, selection, frozenset(states), user()):
        if job is None:
            unknown.append(number)
        elif selection.named or fits(job):
            found.append(Target(number, job.born, job.state))
    return found, say_unknown(unknown)


def say_unknown(numbers: Iterable[int]) -> int:
    """Say which numbers have no job. Returns how many."""
    unknown = list(numbers)
    if len(unknown) > SOME:
        output.say(f"{len(unknown):,} of these numbers have no job, the first is {unknown[0]}")
    else:
        for number in unknown:
            output.say(f"there is no job {number}")
    return len(unknown)


def views(fox: Client, jobs: Sequence[Target]) -> list[JobView]:
    """What the jobs are now; those that are gone left out."""
    read = fox.inspector.views([job.number for job in jobs])
    return [view for view, job in zip(read, jobs, strict=True) if view is not None and view.born == job.born]


def agreed(what: str, count: int, yes: bool) -> bool:
    """Whether so many jobs are meant: asked on a terminal.

    Args:
        what: is to be done, like ``cancel``.
        count: of the jobs.
        yes: was said before.

    Raises:
        InvalidInput: nobody can be asked.
    """
    if yes or count <= SOME:
        return True
    question = f"{what} {count:,} jobs"
    if not output.can_ask():
        raise InvalidInput(f"{question}? give --yes to do that; --dry-run shows which they are. Nothing was changed")
    return click.confirm(f"foxqueue: {question}?", err=True)
