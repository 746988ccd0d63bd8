"""Whether a device is sick: what NVML says of it, and how runs end on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from foxqueue.cuda_errors import sign_in
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.settings import OFF
from foxqueue.withheld import Kind

FAST_S: Final = 60.0  # a run that fails by itself within this may have failed because of its device
BY_ITSELF: Final = ("exit_code", "signal", "exception")  # reasons of ends that nobody asked for
LOOKS: Final = {"lost": 2, "unknown": 2, "hang": 2, "mismatch": 1}  # so many in a row, for it may be a passing one


@dataclass(frozen=True)
class Finding:
    """Why a device must not be given out: a kind of quarantine, and a sentence with the cure."""

    kind: Kind
    text: str


class Sickness:
    """What speaks against one device.

    Args:
        device: which.
        fast_failures: so many runs in a row that fail at once with an error of the driver; OFF for none.
    """

    def __init__(self, device: Device, fast_failures: int = OFF) -> None:
        self.fast_failures = fast_failures
        self._device = device
        self._fault, self._looks = "", 0
        self._ecc: int | None = None
        self._failures = 0

    def see(self, seen: Observation) -> Finding | None:
        """Take a look at the device. A finding comes with every look that confirms it."""
        self._looks = self._looks + 1 if seen.fault == self._fault else 1
        self._fault = seen.fault
        needed = LOOKS.get(seen.fault)
        if needed is not None and self._looks >= needed:
            return Finding("fault", f"{seen.detail}; {self._cure('restart its worker')}")
        return self._count_ecc(seen.ecc_uncorrected)

    @property
    def healthy(self) -> bool:
        """Whether the last look found no fault of any kind."""
        return not self._fault

    @property
    def suspect(self) -> bool:
        """Whether the last look found a fault that another look would confirm."""
        return self._fault in LOOKS

    def _count_ecc(self, count: int | None) -> Finding | None:
        if count is None:
            return None
        if self._ecc is None or count < self._ecc:
            self._ecc = count  # the first look, or the driver was loaded anew
        if count == self._ecc:
            return None
        more = count - self._ecc
        return Finding(
            "ecc",
            f"{more} uncorrected ECC error{'s' if more > 1 else ''} since its worker started ({count} in all): "
            f"nvidia-smi --gpu-reset -i {self._device.uuid}, or reboot; {self._cure('')}",
        )

    def _cure(self, also: str) -> str:
        """How a device is given out again once it is well."""
        return f"when it is well again, {also + ', or ' if also else ''}foxqueue gpus --clear {self._device.uuid}"

    def ended_well(self) -> None:
        """A run on it succeeded, or ran for long."""
        self._failures = 0

    def failed(self, seconds: float, output: str) -> Finding | None:
        """A run failed by itself.

        Only an error of the driver speaks against the device, and only a run that got somewhere speaks for it.

        Args:
            seconds: that it ran.
            output: its end.
        """
        if self._device.kind != "nvml" or self.fast_failures >= OFF:
            return None
        if seconds > FAST_S:
            self.ended_well()
            return None
        sign = sign_in(output)
        if sign is None:
            return None
        self._failures += 1
        if self._failures < self.fast_failures:
            return None
        runs = f"{self._failures} runs in a row" if self._failures > 1 else "a run"
        return Finding("failures", f"{runs} failed on it within a minute, the last one with: {sign}; {self._cure('')}")

    def cleared(self) -> None:
        """An operator says that it is well: what was found before counts no more."""
        self._looks = self._failures = 0
        self._ecc = None
