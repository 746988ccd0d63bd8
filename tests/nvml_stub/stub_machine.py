"""foxqueue.gpu on a fake machine: what the tests of devices ask it."""

from __future__ import annotations

from typing import Any

import pytest
from nvml_stub import Answered, Child
from stub_fixtures import StartChild


class Machine:
    """foxqueue.gpu in a process on the fake machine."""

    def __init__(self, start: StartChild) -> None:
        self._start = start
        self._child: Child | None = None
        self.options: dict[str, Any] = {}

    @property
    def child(self) -> Child:
        """The process, started at first use with ``options``."""
        if self._child is None:
            self._child = self._start(**self.options)
            self._child.run("from foxqueue import gpu, nvml")
        return self._child

    def survey(self, cpu: int = 0, **environ: str) -> dict[str, Any]:
        """gpu.survey() under these variables, as a dict."""
        answer: dict[str, Any] = self.child.ask(f"gpu.survey(None, {cpu}, 'home', 'host', {environ!r})")
        return answer

    def indices(self, **environ: str) -> list[int]:
        """Indices of the devices that gpu.discover() gives under these variables."""
        source = f"[device.index for device in gpu.discover(None, 0, 'home', 'host', {environ!r})]"
        return [int(index) for index in self.child.ask(source)]

    def refused(self, source: str) -> Answered:
        """What an expression raises."""
        with pytest.raises(Answered) as caught:
            self.child.ask(source)
        return caught.value

    def refused_discovery(self, **environ: str) -> Answered:
        """What gpu.discover() raises under these variables."""
        return self.refused(f"gpu.discover(None, 0, 'home', 'host', {environ!r})")

    def probe(self, index: int = 0, timeout_s: float = 5.0) -> None:
        """Make a probe for the device with this index."""
        self.child.run(
            f"probe = gpu.Probe(gpu.find(gpu.discover(None, 0, 'home', 'host', {{}}), '{index}'), {timeout_s})"
        )

    def look(self, *ours: int) -> dict[str, Any]:
        """What the probe sees."""
        answer: dict[str, Any] = self.child.ask(f"probe.look({list(ours)})")
        return answer
