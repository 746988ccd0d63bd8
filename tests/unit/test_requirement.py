"""Shapes: one spelling for each requirement, read back as it was, and what fits where."""

from __future__ import annotations

import pytest

from foxqueue.errors import InvalidInput
from foxqueue.requirement import Requirement, fits, parse_shape


@pytest.mark.parametrize(
    ("need", "shape"),
    [
        (Requirement(), "g1"),
        (Requirement(1, 8192), "g1.m8192"),
        (Requirement(0), "g0"),
        (Requirement(1, 256), "g1.m256"),
        (Requirement(1, 0, True), "g1.c1"),
        (Requirement(1, 8192, True), "g1.m8192.c1"),
    ],
)
def test_a_shape_is_read_back(need: Requirement, shape: str) -> None:
    assert need.shape == shape
    assert parse_shape(shape) == need


@pytest.mark.parametrize(
    "shape",
    ["", "g", "g1.", ".g1", "g1.x5", "g1.m1.z", "g2", "g1.g1", "g1.m1.m2", "g-1", "g1.m", "g0.m1", "G1", "g1 ", "g1\n"],
)
def test_a_shape_with_an_unknown_word_is_left_alone(shape: str) -> None:
    assert parse_shape(shape) is None


@pytest.mark.parametrize("shape", ["g1.c", "g1.c0", "g1.c2", "g1.c1.c1", "g0.c1"])
def test_the_word_for_a_cpu_slot_has_one_spelling(shape: str) -> None:
    assert parse_shape(shape) is None


def test_a_newer_versions_word_is_unfit_and_no_error() -> None:
    assert parse_shape("g1.m1024.k80") is None


@pytest.mark.parametrize("gpus", [-1, 2, 8])
def test_other_counts_are_refused_with_what_is_allowed(gpus: int) -> None:
    with pytest.raises(InvalidInput, match=r"give 0 .* or 1"):
        Requirement(gpus)


def test_memory_without_a_gpu_is_refused_with_the_cure() -> None:
    with pytest.raises(InvalidInput, match="--gpus 1"):
        Requirement(0, 1024)


def test_a_cpu_slot_instead_of_a_cpu_slot_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"--no-gpu-ok .* --gpus 0.* leave one out"):
        Requirement(0, 0, True)


@pytest.mark.parametrize(
    ("kind", "memory", "gpu_served", "expected"),
    [
        ("cpu", None, False, True),
        ("cpu", None, True, False),
        ("nvml", 8192, False, True),
        ("nvml", 8192, True, True),
        ("nvml", 8191, True, False),
        ("nvml", None, True, False),
    ],
)
def test_a_cpu_slot_will_do_only_while_no_gpu_is_served(
    kind: str, memory: int | None, gpu_served: bool, expected: bool
) -> None:
    need = Requirement(1, 8192, True)
    assert fits(need, kind, memory, gpu_served=gpu_served) is expected
    assert not fits(need, "cpu", None)  # unless somebody has looked
    assert not fits(Requirement(1, 8192), "cpu", None, gpu_served=False)


@pytest.mark.parametrize(
    ("need", "kind", "memory", "expected"),
    [
        (Requirement(1), "nvml", 24576, True),
        (Requirement(1), "simulated", 24576, True),
        (Requirement(1), "nvml", None, True),
        (Requirement(1), "cpu", None, False),
        (Requirement(0), "cpu", None, True),
        (Requirement(0), "nvml", 24576, False),
        (Requirement(0), "simulated", 24576, False),
        (Requirement(1, 24576), "nvml", 24576, True),
        (Requirement(1, 24577), "nvml", 24576, False),
        (Requirement(1, 1), "nvml", 0, False),
        (Requirement(1, 1), "nvml", None, False),
    ],
)
def test_what_fits(need: Requirement, kind: str, memory: int | None, expected: bool) -> None:
    assert fits(need, kind, memory) is expected
