"""What becomes of the jobs of one command: said one by one, or as a sum where they are many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from foxqueue.cli import output
from foxqueue.cli.selecting import SOME, Target, views
from foxqueue.states import CANCELLED

if TYPE_CHECKING:
    from foxqueue.changing import Change, Outcome
    from foxqueue.client import Client, Job
    from foxqueue.job import JobView


class Report:
    """Takes the outcomes of one change; a context, at whose end the rest is said.

    Args:
        fox: the client.
        change: what is done.
        jobs: in the order in which they are told; over SOME are told as a sum.
        say: what to say of a job that was changed, read again.
        by_filter: nobody named them, so one to which something else happened first is no failure.
        as_json: stdout gets the changed jobs as JSON, at the end.

    Attributes:
        exit_code: 0; 75 when there was no room for one; else 1 when one was refused.
    """

    def __init__(
        self,
        fox: Client,
        change: Change,
        jobs: Sequence[Target],
        say: Callable[[JobView], str],
        *,
        by_filter: bool,
        as_json: bool,
    ) -> None:
        self._fox = fox
        self._change = change
        self._say = say
        self._many = len(jobs) > SOME
        self._places = {job.number: at for at, job in enumerate(jobs)} if as_json or not self._many else {}
        self._by_filter = by_filter
        self._as_json = as_json
        self._sums: Counter[str] = Counter()
        self._done: list[Outcome] = []
        self.exit_code = 0

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        if self._as_json:
            jobs = [Target(outcome.number, outcome.born, "") for outcome in self._ordered(self._done)]
            output.write_json([view.to_dict() for view in views(self._fox, jobs)])
        elif sums := [f"{count:,} {what}" for what, count in self._sums.items() if count]:
            output.write(", ".join(sums) + "\n")

    def take(self, outcomes: Iterator[Outcome]) -> list[Outcome]:
        """Take outcomes as they come. Returns those of jobs that were changed."""
        before = len(self._done)
        first = list(islice(outcomes, SOME + 1))
        one_by_one = len(first) <= SOME and not self._many
        for outcome in chain(first, outcomes):
            if outcome.word in self._change.words:
                self._done.append(outcome)
            elif outcome.word == "full":
                self.exit_code = 75
            elif not self._by_filter or outcome.word not in self._change.late:
                self.exit_code = self.exit_code or 1
            if not one_by_one and not self._to_end(outcome):
                self._sums[self._change.refusals.get(outcome.word, self._change.done)] += 1
        if one_by_one:
            self._tell(self._ordered(first))
        return self._done[before:]

    def _ordered(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """As the jobs were chosen; others, which a cascade brought, stay behind them."""
        return sorted(outcomes, key=lambda outcome: self._places.get(outcome.number, len(self._places)))

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        read = self._fox.inspector.views([outcome.number for outcome in outcomes])
        for outcome, view in zip(outcomes, read, strict=True):
            if view is None or view.born != outcome.born:
                output.say(f"there is no job {outcome.number} any more")
            elif outcome.word not in self._change.words:
                output.say(str(self._change.refused(view, outcome)))
            elif not self._to_end(outcome):
                self._line(f"{outcome.number} {self._say(view)}")

    def _to_end(self, outcome: Outcome) -> bool:
        """Whether the job was asked to end, and is told when it has."""
        return self._change.verb == "cancel" and outcome.word == "ok"

    def ended(self, job: Job) -> None:
        """Take a job that was asked to end, and has."""
        if job.state != CANCELLED:
            self.exit_code = self.exit_code or 1
        if self._many:
            self._sums[job.state] += 1
        else:
            self._line(f"{job.number} {job.state}")

    def left(self, jobs: Iterable[Job]) -> None:
        """Take jobs that were asked to end, and that nobody waits for any longer."""
        if self._many:
            self._sums["asked to stop"] += sum(not job.ended for job in jobs)

    def _line(self, text: str) -> None:
        if not self._as_json:
            output.write(text + "\n")
