"""Removes what purged jobs left on this machine: their directories outlive their records in Redis."""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from foxqueue.broker import Broker
from foxqueue.config import Config
from foxqueue.errors import ServerError
from workers.leftovers import records

BATCH: Final = 1000  # directories that are looked at in one go
EVERY_S: Final = 60.0
SOON_S: Final = 2.0  # until the next go after one that found something: as fast as jobs are purged, they must go
_JOB = re.compile(r"([1-9][0-9]*)-([0-9]+)\Z")

_log = logging.getLogger(__name__)


class PurgedFiles:
    """Looks now and then at some directories of the namespace's present life, in turn, and removes those without a job.

    Those of other lives stay: their server may come back. Removing is a thread's work, for a job may have left much.

    Args:
        config: home and namespace.
        broker: the main thread's.
    """

    def __init__(self, config: Config, broker: Broker) -> None:
        self._config = config
        self._broker = broker
        self._due = time.monotonic()
        self._instance = ""
        self._names: Iterator[str] = iter(())
        self._stuck: set[Path] = set()
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Look, if it is time. Costs the main thread three round trips then."""
        if time.monotonic() < self._due or (self._thread is not None and self._thread.is_alive()):
            return
        self._due = time.monotonic() + EVERY_S
        try:
            purged = self._without_job(self._next())
        except ServerError as error:
            _log.debug("purged jobs are looked for later: %s", error)
            return
        if purged:
            self._due = time.monotonic() + SOON_S
            self._thread = threading.Thread(target=self._remove, args=(purged,), name="purge", daemon=True)
            self._thread.start()

    def _next(self) -> list[str]:
        """Names of the next directories, from the first again after the last; a new life begins anew.

        Raises:
            ServerError: it does not say which life it is.
        """
        instance = self._broker.settings().instance
        if instance != self._instance:
            self._instance, self._names = instance, iter(())
        names = list(islice(self._names, BATCH))
        if not names:
            self._names = _names(self._config.jobs_dir / instance)
            names = list(islice(self._names, BATCH))
        return names

    def _without_job(self, names: Sequence[str]) -> list[Path]:
        """Directories whose job the server definitely had, and does not have any more.

        One with a number that was not given out yet, or that another job has, is of a job that the server lost when it
        was set back to older data: its files may be all that is left of it.

        Raises:
            ServerError: it did not say.
        """
        found = {name: match for name in names if (match := _JOB.match(name))}
        if not found:
            return []
        numbers = [int(match[1]) for match in found.values()]
        if self._broker.how_many(numbers) == len(set(numbers)) == len(numbers):
            return []  # one command, where nothing was purged
        born, last = self._broker.born_of(numbers), self._broker.last_number()
        if self._broker.settings().instance != self._instance:
            return []  # asked afterwards: a server that was emptied in between has no job of ours
        used = {run.rpartition("/")[0] for run in self._runs()}
        paths = []
        for (name, match), there in zip(found.items(), born, strict=True):
            path = self._config.jobs_dir / self._instance / name
            had = there is None and int(match[1]) <= last
            if had and f"{self._instance}/{name}" not in used and path not in self._stuck:
                paths.append(path)
        return paths

    def _runs(self) -> Iterator[str]:
        """Marks of the runs that somebody has still to end or to tell of."""
        return (record["mark"] for record in records(self._config, "gpu") if isinstance(record.get("mark"), str))

    def _remove(self, paths: Sequence[Path]) -> None:
        for path in paths:
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                self._stuck.add(path)
                _log.warning("%s, which a purged job left, cannot be removed", path)
            else:
                _log.debug("%s, which a purged job left, is removed", path)


def _names(directory: Path) -> Iterator[str]:
    with suppress(OSError), os.scandir(directory) as entries:
        yield from (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
