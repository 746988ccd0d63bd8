"""The device tests again on a real NVIDIA GPU (``make gpu-check``). Where there is none they say so, and fail.

Everything that others could use is left alone: a device that is in use is not taken, and what is held is a gibibyte for
some seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_gpu import gpu_check
from real_gpu.gpu_check import CUDA, HELD_MIB, NO_CUDA, Hold, Told, without_cuda
from stack import Stack

from foxqueue.gpu import Device
from foxqueue.locks import DeviceLock, lock_places
from foxqueue.probing import Probe
from foxqueue.processes import ProcessId
from foxqueue.survey import Survey, survey

NOTHING = 3  # exit code

_passed: list[str] = []
_chosen: list[bool] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.passed and report.when == "call" and "real_gpu" in report.keywords:
        _passed.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A check that skipped everything has checked nothing."""
    if _chosen and not _passed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = NOTHING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _chosen:
        return
    terminalreporter.section("what was seen on this GPU")
    for line in gpu_check.seen:
        terminalreporter.write_line(line)
    if not _passed:
        terminalreporter.write_line("NOTHING WAS CHECKED: no test has passed", red=True)


@pytest.fixture(scope="session", autouse=True)
def found() -> Survey:
    """The devices of this machine that CUDA_VISIBLE_DEVICES leaves."""
    _chosen.append(True)
    there = survey(None, 0, "gpu-check", socket.gethostname(), os.environ)
    if not there.devices:
        why = "; ".join((there.no_gpu or "", *there.notes)).strip("; ")
        pytest.exit(f"NO GPU HERE: nothing was checked ({why})", returncode=NOTHING)
    return there


@pytest.fixture(scope="session")
def device(found: Survey) -> Device:
    """A device that nobody uses."""
    busy = []
    for one in found.devices:
        why = _in_use(one)
        if not why:
            return one
        busy.append(f"{one.ref}: {why}")
    pytest.skip(f"no device is free: {'; '.join(busy)}")


def _in_use(device: Device) -> str:
    probe = Probe(device)
    try:
        seen = probe.look(())
    finally:
        probe.close()
    if seen.state != "free":
        return f"{seen.state}: {seen.detail}"
    if seen.memory_free_mib is not None and seen.memory_free_mib < 2 * HELD_MIB:
        return f"only {seen.memory_free_mib} MiB free"
    places = lock_places("nvml", Path("/nowhere"), os.environ)
    locks = [DeviceLock(device.uuid, "gpu", places), DeviceLock(device.uuid, "worker", places)]
    try:
        return "" if all(lock.acquire() for lock in locks) else "a process of this machine holds its lock"
    finally:
        for lock in locks:
            lock.release()


@pytest.fixture
def probe(device: Device) -> Iterator[Probe]:
    """That device's."""
    made = Probe(device)
    yield made
    made.close()


@pytest.fixture
def hold(device: Device) -> Iterator[Hold]:
    """Start a CUDA program that holds HELD_MIB of the device; an orphan is no child of this process."""
    started: list[subprocess.Popen[str]] = []
    orphans: list[ProcessId | None] = []

    def start(orphan: bool = False) -> tuple[subprocess.Popen[str], Told]:
        process = subprocess.Popen(
            [*(("sh", "-c", '"$@" &', "sh") if orphan else ()), sys.executable, str(CUDA), "hold", str(HELD_MIB)],
            env=without_cuda({"CUDA_VISIBLE_DEVICES": device.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        told: Told = json.loads(process.stdout.readline())
        if NO_CUDA in told.get("error", ""):
            pytest.skip(told["error"])
        assert "error" not in told, told
        orphans.extend([ProcessId.of(told["pid"])] if orphan else [])
        return process, told

    yield start
    for one in orphans:
        if one is not None:
            one.send(signal.SIGKILL)
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def stack(tmp_path: Path, device: Device) -> Iterator[Stack]:
    """A home of its own that is served that device alone."""
    made = Stack(tmp_path, {"CUDA_VISIBLE_DEVICES": device.uuid})
    yield made
    made.end()
    shutil.rmtree(tmp_path, ignore_errors=True)
