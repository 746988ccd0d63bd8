"""The stub itself, loaded by the genuine nvidia-ml-py."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from nvml_stub import NO_COMPILER, Answered, Child, State
from stub_fixtures import StartChild
from wait import until

pytestmark = pytest.mark.nvml

FREE = "nvmlDeviceGetMemoryInfo(h).free // 2**20"
BOTH_GPUS = (
    "gpu 0 name NVIDIA H200",
    "gpu 0 mem_total_mib 143771",
    "gpu 0 mem_reserved_mib 600",
    "gpu 0 proc 4242 2048",
    "gpu 0 util 37 12",
    "gpu 0 temp 45",
    "gpu 0 power_mw 123000",
    "gpu 0 ecc 2",
    "gpu 1 mig_mode 1",
    "mig 1 0 mem_total_mib 9984",
    "mig 1 0 proc 4343 512",
    "mig 1 1 uuid MIG-b",
    "system driver 575.1",
    "system cuda 12090",
)


@pytest.fixture
def opened(nvml_state: State, start_child: StartChild) -> Child:
    """A process that has opened GPU 0, of 1,000 MiB."""
    nvml_state.write("gpu 0 mem_total_mib 1000")
    child = start_child()
    child.run("from pynvml import *; nvmlInit(); h = nvmlDeviceGetHandleByIndex(0)")
    return child


def error_of(child: Child, source: str) -> str:
    with pytest.raises(Answered) as caught:
        child.ask(source)
    return caught.value.kind


def test_tells_of_a_gpu_all_that_the_state_says(nvml_state: State, start_child: StartChild) -> None:
    nvml_state.write(*BOTH_GPUS)
    child = start_child()
    child.run("from pynvml import *; nvmlInit(); M = 2**20; h = nvmlDeviceGetHandleByIndex(0)")
    expected = {
        "nvmlSystemGetDriverVersion()": "575.1",
        "nvmlSystemGetCudaDriverVersion()": 12090,
        "nvmlDeviceGetCount()": 2,
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(nvmlDeviceGetUUID(h)))": 0,
        "nvmlDeviceGetMinorNumber(h)": 0,
        "nvmlDeviceGetName(h)": "NVIDIA H200",
        "[getattr(nvmlDeviceGetMemoryInfo(h), x) // M for x in ('total', 'used', 'free')]": [
            143771,
            2648,
            141123,
        ],
        "[getattr(nvmlDeviceGetMemoryInfo(h, nvmlMemory_v2), x) // M for x in ('used', 'reserved', 'free')]": [
            2048,
            600,
            141123,
        ],
        "nvmlDeviceGetUtilizationRates(h).gpu": 37,
        "nvmlDeviceGetTemperature(h, NVML_TEMPERATURE_GPU)": 45,
        "nvmlDeviceGetTemperatureV(h, NVML_TEMPERATURE_GPU)": 45,
        "nvmlDeviceGetPowerUsage(h)": 123000,
        "nvmlDeviceGetTotalEccErrors(h, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)": 2,
        "nvmlDeviceGetPciInfo(h).busId": "00000000:10:00.0",
        "[(x.pid, x.usedGpuMemory // M) for x in nvmlDeviceGetComputeRunningProcesses(h)]": [[4242, 2048]],
        "[x.pid for x in nvmlDeviceGetComputeRunningProcesses_v2(h)]": [4242],
        "nvmlDeviceGetGraphicsRunningProcesses(h)": [],
    }
    assert {source: child.ask(source) for source in expected} == expected
    assert error_of(child, "nvmlDeviceGetNvLinkState(h, 0)") == "NVMLError_FunctionNotFound"
    child.run("nvmlShutdown()")
    assert error_of(child, "nvmlDeviceGetCount()") == "NVMLError_Uninitialized"


def test_tells_of_mig_instances(nvml_state: State, start_child: StartChild) -> None:
    nvml_state.write(*BOTH_GPUS)
    child = start_child()
    child.run(
        "from pynvml import *; nvmlInit(); g = nvmlDeviceGetHandleByIndex(1)\n"
        "mig = nvmlDeviceGetMigDeviceHandleByIndex(g, 0)"
    )
    assert child.ask("nvmlDeviceGetMigMode(g)") == [1, 1]
    assert child.ask("nvmlDeviceGetMaxMigDeviceCount(g)") == 7
    assert child.ask("nvmlDeviceGetUUID(mig)").startswith("MIG-")
    assert child.ask("nvmlDeviceGetMemoryInfo(mig).used // 2**20") == 512
    assert child.ask("[x.pid for x in nvmlDeviceGetComputeRunningProcesses(mig)]") == [4343]
    assert child.ask("nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig))") == 1
    assert child.ask("nvmlDeviceGetUUID(nvmlDeviceGetHandleByUUID('MIG-b'))") == "MIG-b"
    assert error_of(child, "nvmlDeviceGetMigDeviceHandleByIndex(g, 2)") == "NVMLError_NotFound"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("GPU_IS_LOST", "NVMLError_GpuIsLost"),
        ("NOT_SUPPORTED", "NVMLError_NotSupported"),
        ("UNKNOWN", "NVMLError_Unknown"),
        ("TIMEOUT", "NVMLError_Timeout"),
        ("16", "NVMLError_ResetRequired"),
    ],
)
def test_one_function_fails_while_others_work(nvml_state: State, opened: Child, word: str, kind: str) -> None:
    nvml_state.write("gpu 0 mem_total_mib 1000", f"gpu 0 error nvmlDeviceGetMemoryInfo {word}")
    assert error_of(opened, FREE) == kind
    assert opened.ask("nvmlDeviceGetCount()") == 1


def test_state_changes_while_the_process_runs(nvml_state: State, opened: Child) -> None:
    assert opened.ask(FREE) == 1000
    nvml_state.write("gpu 0 mem_total_mib 1000", "gpu 0 mem_used_mib 900")
    assert opened.ask(FREE) == 100
    nvml_state.write()
    assert error_of(opened, FREE) == "NVMLError_GpuIsLost"


def test_calls_are_slow_or_hang(nvml_state: State, opened: Child) -> None:
    nvml_state.write("gpu 0 mem_total_mib 1000", "gpu 0 delay_ms nvmlDeviceGetMemoryInfo 300")
    assert opened.ask(FREE) == 1000
    assert opened.seconds > 0.29
    nvml_state.write("gpu 0 mem_total_mib 1000", "gpu 0 delay_ms * -1")
    relief = threading.Timer(0.5, nvml_state.write, ("gpu 0 mem_total_mib 1000",))
    relief.start()
    assert opened.ask(FREE) == 1000
    assert opened.seconds > 0.4
    relief.join()


def test_memory_goes_with_its_process(nvml_state: State, opened: Child) -> None:
    job = subprocess.Popen(nvml_state.holding(0, 700), stdout=subprocess.PIPE)
    assert job.stdout is not None
    try:
        assert job.stdout.readline() == b"holding\n"
        assert opened.ask(FREE) == 300
        assert opened.ask("[x.pid for x in nvmlDeviceGetComputeRunningProcesses(h)]") == [job.pid]
    finally:
        job.kill()
    # not reaped yet: a zombie holds nothing
    until(lambda: opened.ask(FREE) == 1000, what="memory given back")
    job.communicate()


def test_without_library_and_without_driver(nvml_state: State, start_child: StartChild) -> None:
    nvml_state.write("system error nvmlInit DRIVER_NOT_LOADED")
    child = start_child()
    child.run("from pynvml import *")
    assert error_of(child, "nvmlInit()") == "NVMLError_DriverNotLoaded"
    bare = start_child(LD_LIBRARY_PATH=str(nvml_state.root))
    bare.run("from pynvml import *")
    assert error_of(bare, "nvmlInit()") == "NVMLError_LibraryNotFound"


def test_threads_may_call_at_once(opened: Child) -> None:
    opened.run(
        textwrap.dedent("""
        import threading
        right = []
        def ask():
            right.extend(nvmlDeviceGetMemoryInfo(h).total == 1000 * 2**20 for _ in range(500))
        threads = [threading.Thread(target=ask) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """)
    )
    assert opened.ask("(len(right), all(right))") == [2000, True]


@pytest.mark.parametrize(("ci", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 error")])
def test_without_a_compiler_it_is_skipped_loudly_and_fails_in_ci(
    tmp_path: Path, ci: dict[str, str], outcome: str
) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("CC", "CI")}
    env |= {"PATH": str(tmp_path), **ci}
    test = f"{__file__}::{test_threads_may_call_at_once.__name__}"
    options = ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, test], env=env, capture_output=True, text=True)
    assert outcome in done.stdout and NO_COMPILER in done.stdout
    assert (done.returncode != 0) == bool(ci)
