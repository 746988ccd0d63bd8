"""Workers of RQ to which something happens at the wrong moment."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from foxqueue.errors import LeaseLost
from workers.rq_bridge import GpuWorker


class LosesEarly(GpuWorker):
    """Its lease is lost before the work horse is forked."""

    def prepare_execution(self, *args: Any, **kwargs: Any) -> Any:
        """Called between the two. The horse is slow to begin its process group."""
        os.register_at_fork(after_in_child=lambda: time.sleep(0.5))
        self._is_lost(LeaseLost("the lease of sim:0 is lost: taken away by ann"))
        return super().prepare_execution(*args, **kwargs)


class GoesAwayLate(GpuWorker):
    """What it waits for is no longer wanted just when it has a device."""

    _went = False

    def _has_work(self) -> bool:
        if self._lease is not None and not self._went:
            self._went = True
            return False
        return super()._has_work()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_lease" and value is not None and not self._went:
            os.kill(os.getpid(), signal.SIGALRM)
