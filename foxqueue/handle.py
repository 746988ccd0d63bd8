"""A job as applications hold it: what was last read of it, and what can be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from foxqueue.errors import JobGone, JobNotFound, NotCancelled
from foxqueue.job import JobView
from foxqueue.submission import user

if TYPE_CHECKING:
    from foxqueue.client import Client


class Job:
    """A job, as it was when last read. ``refresh`` reads it again.

    It has the attributes of :class:`foxqueue.job.JobView`; the usual ones are named here.
    """

    number: int
    born: str
    state: str
    reason: str | None
    detail: str | None
    waiting_for: str | None
    name: str | None
    user: str | None
    priority: int | None
    gpu_uuids: tuple[str, ...]
    worker: str | None
    host: str | None
    attempts: int
    losses: int
    exit_code: int | None
    command: tuple[str, ...]
    tags: Mapping[str, str]
    waiting: bool
    running: bool
    ended: bool
    succeeded: bool

    def __init__(self, client: Client, view: JobView) -> None:
        self._client = client
        self.view = view

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "view":
            raise AttributeError(name)
        return getattr(self.view, name)

    def __repr__(self) -> str:
        return f"<Job {self.number} {self.state}>"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the job."""
        return self.view.to_dict()

    def refresh(self) -> Job:
        """Read it again.

        Raises:
            JobNotFound, JobGone: the server lost it.
        """
        self.view = self._client.current(self.number, self.born)
        return self

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until it has ended, however it ended.

        Args:
            timeout: seconds, None for as long as it takes.

        Raises:
            WaitTimeout: the time is over.
        """
        self._client.wait([self], timeout)
        return self

    def cancel(self) -> Job:
        """Cancel it: at once while it waits; a running one is asked to stop, and ``wait`` tells when it has.

        Raises:
            NotCancelled: it had ended otherwise.
            JobNotFound, JobGone: there is no such job.
        """
        word = self._client.broker.cancel(self.number, self.born, user())
        if word == "missing":
            raise JobNotFound(f"there is no job {self.number}")
        self.refresh()
        if word not in ("ok", "cancelled"):
            raise NotCancelled(f"job {self.number} cannot be cancelled: it had {self.state} before")
        return self

    def logs(self) -> bytes:
        """What is kept of its output: the last 64 KiB, both streams as they came.

        Raises:
            JobNotFound, JobGone: there is no such job.
        """
        pieces = self._client.inspector.log(self.number)
        self.refresh()  # afterwards: what was read belongs to the job that still has the number
        return b"".join(piece.data for piece in pieces)

    def follow(self) -> Iterator[bytes]:
        """Output as it comes, over all attempts, beginning with what is kept; ends when the job has ended."""
        return (piece.data for piece in self._client.pieces(self))


def same_job(view: JobView | None, number: int, born: str) -> JobView:
    """The view, if it is of the job that was meant."""
    if view is None:
        raise JobNotFound(f"there is no job {number} any more: the server lost it")
    if view.born != born:
        raise JobGone(f"job {number} is another job by now: the server lost data and gave the number out again")
    return view
