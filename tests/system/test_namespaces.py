"""Two machines and a network between them: workers in two network namespaces, one server, a cable that is pulled."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from netns import Cable, how
from stack import Stack, ended, gone, until_exists
from wait import until

from foxqueue.config import url_file

OPTIONS = how()
if OPTIONS is None:
    # At collection, and so a line in the summary: an unprivileged user's tests pass, and say what they left out.
    pytest.skip("NO NETWORK NAMESPACES HERE: several machines are not tested", allow_module_level=True)


class Machine(Stack):
    """A home whose programs run on one side of the cable."""

    def __init__(self, root: Path, cable: Cable, side: int, environ: Mapping[str, str] | None = None) -> None:
        super().__init__(root, environ)
        self._prefix = cable.prefix(side)

    def _start(self, command: list[str], name: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return super()._start([*self._prefix, *command], name, environ)


class Pair:
    """A machine with the server and a worker, and one that has a worker only."""

    def __init__(self, cable: Cable, near: Machine, far: Machine, devices: tuple[str, str]) -> None:
        self.cable, self.near, self.far = cable, near, far
        self.device, self.far_device = devices

    def occupy(self, flags: Path) -> list[tuple[int, Path]]:
        """A job on each machine, the near one first, with the file that it waits for."""
        found = {}
        for name in ("one", "two"):
            number = self.near.queue(*until_exists(flags.with_suffix(f".{name}")))
            device = self.near.await_state(number, "running")["gpu_uuids"][0]
            found[device] = (number, flags.with_suffix(f".{name}"))
            until(lambda number=number: self.near.processes_of(number), 10, "its process")
        return [found[self.device], found[self.far_device]]


def started(cable: Cable, tmp_path: Path, opened: ExitStack, ttl: str) -> Pair:
    """Both machines, served."""
    near = opened.enter_context(ended(Machine(tmp_path / "near", cable, 0)))
    near.up("--simulate", "1x24G", "--bind", f"{cable.here}:6390", "--lease-ttl", ttl, workers=1)
    (device,) = near.devices()
    url = url_file(near.api.config).read_text().strip()
    far = opened.enter_context(ended(Machine(tmp_path / "far", cable, 1, {"FOXQUEUE_URL": url})))
    far.start("up", "--simulate", "1x24G")
    until(lambda: len(near.devices()) == 2 and len(near.api.workers()) == 2, 20, "the far worker")
    (far_device,) = set(near.devices()) - {device}
    return Pair(cable, near, far, (device, far_device))


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def cable(opened: ExitStack) -> Cable:
    assert OPTIONS is not None
    return opened.enter_context(Cable(OPTIONS))


def test_a_short_cut_is_not_noticed_by_the_job(cable: Cable, opened: ExitStack, tmp_path: Path) -> None:
    pair = started(cable, tmp_path, opened, "10s")
    near = pair.near
    (here, here_flag), (there, there_flag) = pair.occupy(tmp_path / "flag")
    processes = near.processes_of(there)
    cable.pull()
    until(lambda: f"Redis is away, job {there} goes on" in pair.far.log("up"), 15, "the far worker to see it")
    here_flag.touch()
    assert near.await_state(here, "succeeded")["attempts"] == 1, "one machine works on without the other"
    assert not gone(processes)(), "the job goes on without Redis"
    there_flag.touch()
    until(gone(processes), what="its end")
    assert near.job(there)["state"] == "running", "which nobody can be told of yet"
    cable.plug()
    assert near.await_state(there, "succeeded")["attempts"] == 1
    assert len(near.events(there, "complete")) == 1 and near.job(there)["losses"] == 0


def test_after_a_long_cut_the_job_ran_elsewhere_and_is_accepted_once(
    cable: Cable, opened: ExitStack, tmp_path: Path
) -> None:
    pair = started(cable, tmp_path, opened, "2s")
    near = pair.near
    (blocker, its_flag), (number, flag) = pair.occupy(tmp_path / "flag")
    old, mark = near.processes_of(number), near.mark_of(number)
    cable.pull()
    its_flag.touch()
    near.await_state(blocker, "succeeded")
    until(lambda: near.job(number)["gpu_uuids"] == [pair.device] and near.job(number)["state"] == "running", 30, "reap")
    assert near.mark_of(number) != mark and near.job(number)["losses"] == 1
    assert not gone(old)(), "nobody could tell the far machine"
    cable.plug()
    until(gone(old), 20, "the end of the old run, which was refused")
    assert near.job(number)["state"] == "running", "the new one is not concerned"
    flag.touch()
    accepted = near.await_state(number, "succeeded")
    assert (accepted["attempts"], accepted["losses"], accepted["gpu_uuids"]) == (1, 1, [pair.device])
    assert len(near.events(number, "complete")) == 1
    assert len(pair.occupy(tmp_path / "again")) == 2, "the far machine works again"
