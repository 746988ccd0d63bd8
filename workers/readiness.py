"""Whether a worker may claim for its device now: it is well, its memory is there, it is ours, and the disk has room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from foxqueue.broker import NamespaceSettings
from foxqueue.ending import Verdict
from foxqueue.errors import ServerError
from foxqueue.gpu import Device
from foxqueue.presence import Presence
from foxqueue.probing import Observation
from workers.admission import Admission, Standing
from workers.holding import Holding
from workers.room import Room
from workers.run import Run
from workers.sampling import Sampler
from workers.sickness import BY_ITSELF, Sickness
from workers.watching import Watch
from workers.withholding import Withholding

AT_ONCE_S: Final = 0.005  # a device that is clean within this is claimed for in the round trip that ends the last job
PATIENCE_S: Final = 0.5  # that a look is waited for; one that hangs goes on in its own thread
FIRST_S: Final = 1.0
MOMENT_S: Final = 0.1  # between looks at memory that is coming back
FAULTS_S: Final = 11.0  # that the end of a failed run waits to learn whether a driver that hangs is to blame
GLANCE_S: Final = 0.02  # that others hold a device to look at it, or for one question
LETTING_GO_S: Final = 0.05  # that who gave a device back takes to unlock it

_log = logging.getLogger(__name__)


class Readiness:
    """Looks before each claim, and after each run.

    Args:
        device: that is served.
        presence: told what is seen.
        holding: of the device's locks.
        room: for the files of runs.
        withholding: keeps a dirty or a sick device from being given out.
        tell: called, in another thread, when the device has changed while nobody asked.

    Attributes:
        again_s: seconds after which to look again when it was not usable, None for the usual time.
        waits_for_device: whether it was not usable because somebody has it, whose release in Redis wakes the worker.
    """

    def __init__(
        self,
        device: Device,
        settings: NamespaceSettings,
        presence: Presence,
        holding: Holding,
        room: Room,
        withholding: Withholding,
        tell: Callable[[], None],
    ) -> None:
        self.again_s: float | None = None
        self.waits_for_device = False
        self._device = device
        self._presence = presence
        self._holding = holding
        self._room = room
        self._withholding = withholding
        self._sampler = Sampler(device, tell, holding.siblings)
        self._admission = Admission(device, settings.admission_samples, settings.memory_return_ms / 1000)
        self._sickness = Sickness(device, settings.fast_failures)
        self.watch = Watch(device, presence, self._sampler, self._admission, self._sickness, withholding)
        self._said = ""
        self._begun = False
        self.obey(settings)

    def begin(self, settings: NamespaceSettings) -> None:
        """Start looking."""
        self._sampler.begin(settings.admission_samples)

    def wait(self, moment: Callable[[], bool]) -> None:
        """Wait for the first looks, a second at most: what is published before says less than nothing.

        Args:
            moment: waits a moment; false when the worker is to stop.
        """
        until = time.monotonic() + FIRST_S
        while self._sampler.is_hurried and time.monotonic() < until and moment():
            continue
        self.watch.take()

    def obey(self, settings: NamespaceSettings) -> None:
        """Take the settings as they are now."""
        self._sampler.ignore, self._sampler.over_mib = settings.ignored, settings.occupied_over_mib
        self._admission.keep(settings.admission_samples)
        self._admission.allowed_s = settings.memory_return_ms / 1000
        self._sickness.fast_failures = settings.fast_failures

    def close(self) -> None:
        """Stop looking."""
        self._sampler.close()

    # --- before a claim --------------------------------------------------------------------------------

    def usable(self, *, freed: bool = False) -> bool:
        """Look at the device, and take its file lock.

        Args:
            freed: somebody has just given it back, and may not have unlocked it yet.
        """
        self.again_s, self.waits_for_device = None, False
        seen = self._sampler.fresh(PATIENCE_S)
        self.watch.take()
        returning = self._admission.returning
        if seen is None:
            return self._not_looked_at(freed)
        standing = self._admission.judge(seen, time.monotonic())
        self._presence.look(standing.seen)
        returned = standing.word == "free" or (returning and not self._admission.returning)
        if self._is_withheld(standing, returned=returned, soon=freed):
            return False
        if standing.word == "waits":
            return self._not_now("unavailable", standing.text, MOMENT_S)
        if standing.word != "free":
            return self._not_now(seen.state, seen.detail)
        lacking = self._room.lacking()
        if lacking:
            return self._not_now("unavailable", lacking)
        held = self._take_lock(LETTING_GO_S if freed else GLANCE_S)
        if held:
            return self._is_held(held)
        self.watch.alone = True
        self._say("")
        self._admission.claimed(seen)
        return True

    def _not_looked_at(self, freed: bool) -> bool:
        if self._withholding.look(soon=freed):
            return self._show_withheld()
        return self._not_now("unavailable", "its driver is slow to answer", MOMENT_S)

    def _is_held(self, held: str) -> bool:
        self.watch.alone = False
        self._admission.forgive()  # what is in use from now on is somebody else's
        self.waits_for_device = self._holding.is_leased()
        passing = not self._holding.is_used()  # somebody only looks at it, or is about to use it
        return self._not_now("held", held, MOMENT_S if passing else None)

    def _take_lock(self, patience_s: float) -> str:
        deadline = time.monotonic() + patience_s
        while (held := self._holding.try_use()) and time.monotonic() < deadline:
            time.sleep(0.002)
        return held

    def at_once(self) -> bool:
        """Whether the next claim can follow without waiting; the lock is held still."""
        if self._room.lacking():
            return False
        seen = self._sampler.fresh(AT_ONCE_S)
        self.watch.take()
        if seen is None or self._withholding.current is not None:
            return False
        standing = self._admission.judge(seen, time.monotonic())
        self._presence.look(standing.seen)
        if standing.word != "free":
            return False
        self._admission.claimed(seen)
        return True

    def refused(self, word: str) -> None:
        """A claim was answered ``taken`` (perhaps somebody else withholds it) or ``yield``."""
        if word == "yield":
            _log.info("%s is left to somebody who waits for it", self._device.ref)
        elif not self._withholding.look(soon=True):
            _log.info("%s is somebody else's, says the queue", self._device.ref)

    def _is_withheld(self, standing: Standing, *, returned: bool, soon: bool) -> bool:
        """Withhold a dirty device, give out again one that is well, and say so."""
        try:
            if not self._begun and standing.word != "waits":
                self._withholding.begin(self._sickness.healthy)
                self._begun = True
        except ServerError as error:
            _log.debug("not asked what is withheld: %s", error)
        before = self._withholding.current
        if standing.word == "dirty":
            self._withholding.withhold("dirty", "memory", standing.text)
        elif before is not None and before.kind == "memory" and returned:
            self._withholding.clear("memory")
        self._withholding.say()
        if not self._withholding.look(soon=soon):
            if before is not None and before.kind != "memory":
                self._sickness.cleared()
            elif before is not None:
                self._admission.forgive()
            return False
        self._show_withheld()
        return True

    def _show_withheld(self) -> bool:
        now = self._withholding.current
        if now is not None:
            self._not_now(now.word, now.text)
            self.waits_for_device = True
        return False

    def _not_now(self, state: str, detail: str, again_s: float | None = None) -> bool:
        self._presence.overlay(state, detail)
        self.again_s = again_s
        self._say(f"{self._device.ref} is {state}: {detail}")
        return False

    def _say(self, text: str) -> None:
        """Log a state of the device once, not at every poll."""
        if text and text != self._said:
            _log.warning("%s", text)
        self._said = text

    # --- after a run -----------------------------------------------------------------------------------

    def ended(self, run: Run, verdict: Verdict, stops: Callable[[], bool]) -> Verdict:
        """A run is over: what does its end say of the device, and the device of its end?

        Args:
            run: it.
            verdict: how it ended, as far as its processes tell.
            stops: whether the worker is to stop.

        Returns:
            How it ended. A run that failed because of its device is given back.
        """
        self.watch.end()
        self._admission.ended(run.claimed.number, time.monotonic())
        if verdict.verb == "complete":
            self._sickness.ended_well()
        if self._device.kind != "nvml" or verdict.verb != "fail" or verdict.reason not in BY_ITSELF:
            return verdict
        sick = self._found_sick(stops)
        if sick is not None:
            text = f"its device {self._device.ref} ({self._device.whole}) is sick: {sick}"
            return Verdict("release", "quarantined", text, verdict.exit_code)
        raised = (verdict.exception or {}).get("message", "")
        finding = self._sickness.failed(run.seconds(), f"{run.last_output()}\n{raised}")
        if finding is not None:
            self._withholding.withhold("quarantined", finding.kind, finding.text, run.claimed.number)
        return verdict

    def _found_sick(self, stops: Callable[[], bool]) -> str | None:
        """Look until it is clear whether the device has a fault. Returns which, None for none."""
        deadline = time.monotonic() + FAULTS_S
        while True:
            seen: Observation | None = self._sampler.fresh(PATIENCE_S)
            self.watch.take()
            now = self._withholding.current
            if now is not None and now.kind in ("fault", "ecc"):
                return now.text
            well = seen is not None and not self._sickness.suspect
            if well or stops() or time.monotonic() > deadline:
                return None
