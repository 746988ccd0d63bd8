"""The file locks of a device for claims of custom workers, and what they must find gone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from foxqueue.broker import Broker
from foxqueue.config import Config
from foxqueue.errors import DeviceHeld, ServerError
from foxqueue.gpu import Device
from foxqueue.holding import Hold, end_named, names_a_run
from foxqueue.locks import DeviceLock
from foxqueue.processes import ProcessId
from foxqueue.states import RUNNING

OUTCOMES: Final = ("exit.json", "return.msgpack")  # files in which a run of a worker leaves how it ended

_log = logging.getLogger(__name__)


class ClaimHold(Hold):
    """The locks of a device for claims: they wait for each other, and give way to a worker."""

    def __init__(
        self, config: Config, device: Device, host: str, broker: Broker, places: Sequence[Path] | None = None
    ) -> None:
        super().__init__(config, device, host, broker, places)
        self._broker = broker

    def take_seat(self) -> bool:
        """Lock the seat. False when another claim has it.

        Raises:
            DeviceHeld: a worker has it.
        """
        if self.seat.acquire():
            return True
        worker = ProcessId.named(self._seated(), "process")
        if worker is not None and worker.alive():
            raise DeviceHeld(self.refusal())
        return False

    def stand_up(self, worker: str) -> None:
        """Give the seat up. Its record says whose it was, and names no process that could be told to end."""
        with suppress(OSError):
            self.seat.write({**self.whose(), "worker": worker, "host": self.host})
        self.seat.unlock()

    def _clean_up(self, lock: DeviceLock) -> str:
        if not names_a_run(lock):
            return ""
        record = end_named(lock)
        try:
            obstacle = self._lose(record) if self.is_ours(record) else ""
        except ServerError as error:
            return f"what became of job {record.get('job')}, left on it, cannot be told: {error}"
        if not obstacle:
            self.done(lock)
        return obstacle

    def _lose(self, record: Mapping[str, Any]) -> str:
        """Tell that the run is over, which the record names. Why it cannot be, "" when it is told."""
        try:
            number, fence, run_dir = int(record["job"]), str(int(record["fence"])), Path(record["run_dir"])
        except (KeyError, TypeError, ValueError):
            return ""
        found = self._broker.connection.answer(("HMGET", self._broker.keys.job(number), "state", "fence"), "job")
        if found != [RUNNING.encode(), fence.encode()]:
            return ""
        if any((run_dir / name).exists() for name in OUTCOMES):
            return f"job {number} ended on it, and its worker died before it could tell: foxqueue up tells it"
        word = self._broker.send(self._broker.lose_call(number, fence))[0].word
        _log.warning("job %d, left by a dead process: %s", number, word)
        return ""
