"""Many jobs in parts that the queue takes in one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foxqueue.broker import CHUNK_BYTES, CHUNK_JOBS, CHUNK_PARENTS, NewJob
from foxqueue.submission import Submission


def chunks(jobs: Iterable[tuple[NewJob, Submission]]) -> Iterator[tuple[list[NewJob], Submission]]:
    """Parts of one environment and not too large, each with its first request; jobs with a unique key stand alone.

    Args:
        jobs: each with the request that it was made of; taken one by one.
    """
    chunk: list[NewJob] = []
    first: Submission | None = None
    size = parents = 0
    for job, submission in jobs:
        waits_for = ("\n" + job.more).count("\nafter=") if job.more else 0
        size, parents = size + len(job.spec), parents + waits_for
        full = len(chunk) == CHUNK_JOBS or size > CHUNK_BYTES or parents > CHUNK_PARENTS
        if first is not None and (
            full or first.if_exists or submission.if_exists or submission.environment is not first.environment
        ):
            yield chunk, first
            chunk, first, size, parents = [], None, len(job.spec), waits_for
        first = first or submission
        chunk.append(job)
    if first is not None:
        yield chunk, first
