"""Devices on a fake machine: what their tests ask."""

from __future__ import annotations

from typing import Any

import pytest
from nvml_stub import Answered, Child
from stub_fixtures import StartChild


class Machine:
    """foxqueue in a process on the fake machine."""

    def __init__(self, start: StartChild) -> None:
        self._start = start
        self._child: Child | None = None
        self.options: dict[str, Any] = {}
        self.in_container = False

    @property
    def child(self) -> Child:
        """The process, started at first use with ``options``."""
        if self._child is None:
            self._child = self._start(**self.options)
            self._child.run("from foxqueue import gpu, nvml, probing, snapshots, strangers, survey")
            if not self.in_container:  # whatever the tests themselves run in: numbers of made up processes count
                self._child.run("strangers.in_initial_namespace = lambda: True")
        return self._child

    def survey(self, cpu: int = 0, **environ: str) -> dict[str, Any]:
        """survey.survey() under these variables, as a dict."""
        answer: dict[str, Any] = self.child.ask(f"survey.survey(None, {cpu}, 'home', 'host', {environ!r})")
        return answer

    def indices(self, **environ: str) -> list[int]:
        """Indices of the devices that survey.discover() gives under these variables."""
        source = f"[device.index for device in survey.discover(None, 0, 'home', 'host', {environ!r})]"
        return [int(index) for index in self.child.ask(source)]

    def refused(self, source: str) -> Answered:
        """What an expression raises."""
        with pytest.raises(Answered) as caught:
            self.child.ask(source)
        return caught.value

    def refused_discovery(self, **environ: str) -> Answered:
        """What survey.discover() raises under these variables."""
        return self.refused(f"survey.discover(None, 0, 'home', 'host', {environ!r})")

    def probe(self, index: int | str = 0, timeout_s: float = 5.0) -> None:
        """Make a probe for the device with this index or name."""
        self.child.run(
            f"probe = probing.Probe(gpu.find(survey.discover(None, 0, 'home', 'host', {{}}), '{index}'), {timeout_s})"
        )

    def look(self, *ours: int, **more: Any) -> dict[str, Any]:
        """What the probe sees; ``more`` are its other arguments."""
        answer: dict[str, Any] = self.child.ask(f"probe.look({list(ours)}, **{more!r})")
        return answer


def held(seen: dict[str, Any]) -> list[list[int | None]]:
    """Pid and MiB of each stranger that was seen."""
    return [[stranger["pid"], stranger["mib"]] for stranger in seen["strangers"]]
