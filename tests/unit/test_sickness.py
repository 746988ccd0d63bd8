"""What speaks against a device: faults, memory errors, runs that fail at once with an error of the driver."""

from __future__ import annotations

from typing import Any

import pytest

from foxqueue.cuda_errors import sign_in
from foxqueue.gpu import Device
from foxqueue.probing import Observation
from foxqueue.settings import OFF
from workers.sickness import Sickness

GPU = Device("GPU-1", 0, "NVIDIA H200", "nvml", 24_000)
UNKNOWN = "RuntimeError: CUDA error: unknown error"


def look(fault: Any = "", ecc: int | None = 0) -> Observation:
    state: Any = "unavailable" if fault else "free"
    return Observation(24_000, 24_000, 0, state, "what NVML says" if fault else "", ecc_uncorrected=ecc, fault=fault)


def found(sickness: Sickness, *looks: Observation) -> list[str]:
    return [finding.kind if (finding := sickness.see(seen)) else "" for seen in looks]


@pytest.mark.parametrize(
    ("faults", "kinds"),
    [
        (("lost", "lost", "lost"), ["", "fault", "fault"]),
        (("unknown", "unknown"), ["", "fault"]),
        (("hang", "hang"), ["", "fault"]),
        (("mismatch",), ["fault"]),
        (("lost", "", "lost"), ["", "", ""]),
        (("lost", "hang", "lost"), ["", "", ""]),
        (("other", "other", "other"), ["", "", ""]),
    ],
)
def test_a_fault_counts_when_a_second_look_confirms_it(faults: tuple[str, ...], kinds: list[str]) -> None:
    sickness = Sickness(GPU)
    assert found(sickness, *map(look, faults)) == kinds


def test_a_fault_comes_with_its_words_and_the_cure() -> None:
    sickness = Sickness(GPU)
    sickness.see(look("lost"))
    assert sickness.suspect and not sickness.healthy
    finding = sickness.see(look("lost"))
    assert finding is not None and finding.text.startswith("what NVML says; ")
    assert "restart its worker, or foxqueue gpus --clear GPU-1" in finding.text
    sickness.see(look())
    assert not sickness.suspect and sickness.healthy


def test_memory_errors_count_from_what_there_was_at_first() -> None:
    sickness = Sickness(GPU)
    counts = [None, 5, 5, None, 6, 8, 8]
    assert found(sickness, *(look(ecc=count) for count in counts)) == ["", "", "", "", "ecc", "ecc", "ecc"]
    finding = sickness.see(look(ecc=8))
    assert finding is not None and "3 uncorrected ECC errors since its worker started (8 in all)" in finding.text
    sickness.cleared()
    assert found(sickness, look(ecc=8), look(ecc=8), look(ecc=9)) == ["", "", "ecc"]
    assert found(sickness, look(ecc=0), look(ecc=1)) == ["", "ecc"], "the driver was loaded anew"


def test_runs_that_fail_at_once_with_an_error_of_the_driver_add_up() -> None:
    sickness = Sickness(GPU, fast_failures=3)
    assert sickness.failed(1.0, UNKNOWN) is None and sickness.failed(59.0, UNKNOWN) is None
    finding = sickness.failed(2.0, f"epoch 1\n{UNKNOWN}\nmore")
    assert finding is not None and finding.kind == "failures"
    assert "3 runs in a row failed on it within a minute, the last one with: " + UNKNOWN in finding.text
    sickness.cleared()
    assert sickness.failed(1.0, UNKNOWN) is None


@pytest.mark.parametrize("between", ["success", "a long run", "an error of the program"])
def test_what_speaks_for_a_device_starts_the_count_again(between: str) -> None:
    sickness = Sickness(GPU, fast_failures=2)
    sickness.failed(1.0, UNKNOWN)
    if between == "success":
        sickness.ended_well()
    else:
        seconds, output = (61.0, UNKNOWN) if between == "a long run" else (1.0, "ImportError: no module torch")
        assert sickness.failed(seconds, output) is None
    counts = between == "an error of the program"  # which says nothing of the device
    assert (sickness.failed(1.0, UNKNOWN) is not None) is counts


def test_no_count_without_a_gpu_and_none_when_it_is_off() -> None:
    slot = Device("CPU-1", 0, "CPU slot", "cpu", None)
    for sickness in (Sickness(slot, 1), Sickness(GPU, OFF)):
        assert sickness.failed(1.0, UNKNOWN) is None
    finding = Sickness(GPU, 1).failed(1.0, UNKNOWN)
    assert finding is not None and finding.text.startswith("a run failed")


@pytest.mark.parametrize(
    "output",
    [
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "cuda runtime error (46) : all CUDA-capable devices are busy or unavailable at x.cu:66",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: CUDA_ERROR_ECC_UNCORRECTABLE",
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        "Error 802: system not yet initialized (Triggered internally at CUDAFunctions.cpp:119.)",
        "failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error",
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorUnknown: unknown error",
        "NCCL WARN Cuda failure 'unknown error'",
        "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing",
        "Failed to initialize NVML: Driver/library version mismatch",
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.",
    ],
)
def test_errors_of_the_driver_are_known(output: str) -> None:
    assert sign_in(f"first line\n{output}\nlast line") == output


@pytest.mark.parametrize(
    "output",
    [
        "",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: unspecified launch failure",
        "RuntimeError: CUDA error: invalid device ordinal",
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: No CUDA GPUs are available",
        "RuntimeError: CUDA error: initialization error",
        "RuntimeError: CUDA error: OS call failed or operation not supported on this OS",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "ValueError: unknown error",
    ],
)
def test_errors_of_programs_are_not_the_devices(output: str) -> None:
    assert sign_in(output) is None


def test_the_line_that_is_shown_is_short_and_printable() -> None:
    line = sign_in("x" * 500 + " CUDA_ERROR_UNKNOWN " + "y" * 500)
    assert line == "CUDA_ERROR_UNKNOWN"
    assert sign_in("\x1b[31mGPU is lost\x1b[0m") == "[31mGPU is lost [0m"
