"""Sizes, times and priorities as people write them."""

from __future__ import annotations

import pytest

from foxqueue.errors import InvalidInput
from foxqueue.units import format_duration, format_memory, parse_duration, parse_memory, parse_priority


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("8G", 8192),
        ("8g", 8192),
        ("8GiB", 8192),
        ("8GB", 8192),
        (" 8 G ", 8192),
        ("512M", 512),
        ("1.5G", 1536),
        ("0.1G", 256),
        ("1M", 256),
        ("257M", 512),
        ("1T", 1024 * 1024),
        ("0", 0),
    ],
)
def test_memory_is_read_and_rounded_up_to_256_mib(text: str, mib: int) -> None:
    assert parse_memory(text) == mib


@pytest.mark.parametrize("text", ["", "8", "G", "-8G", "8K", "8 gigs", "1e3G", "nanG", "infG", "8G8", "99999999T"])
def test_other_sizes_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"8G or 512M|at most 1024T"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("1h30m", 5400),
        ("10s", 10),
        ("500ms", 0.5),
        ("1.5s", 1.5),
        ("1h 30m", 5400),
        ("0", 0),
        ("2d", 172800),
    ],
)
def test_times_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "30", "m", "-1s", "1y", "1h30", "10 minutes", "1e3s", "nan", "366d"])
def test_other_times_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"30m or 1h30m|at most 365d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("given", "priority"), [("low", 2), ("Medium", 5), ("HIGH", 8), ("0", 0), (9, 9), (" 3 ", 3), (0, 0)]
)
def test_priorities_are_read(given: int | str, priority: int) -> None:
    assert parse_priority(given) == priority


@pytest.mark.parametrize("given", ["", "10", "-1", "urgent", "5.5", "٥", 10, -1])
def test_other_priorities_are_refused_with_what_is_allowed(given: int | str) -> None:
    with pytest.raises(InvalidInput, match=r"0 to 9, low \(2\), medium \(5\) or high \(8\)"):
        parse_priority(given)


def test_sizes_and_times_are_shown_short() -> None:
    assert [format_memory(mib) for mib in (None, 0, 512, 1024, 7680, 24576)] == [
        "unknown",
        "0M",
        "512M",
        "1G",
        "7.5G",
        "24G",
    ]
    assert [format_duration(s) for s in (0, 59.9, 184, 7500, 273600)] == ["0s", "59s", "3m04s", "2h05m", "3d04h"]


@pytest.mark.parametrize(
    ("mib", "shown"),
    [(24832, "24.25G"), (24564, "23.99G"), (24575, "24575M"), (24577, "24.01G"), (143771, "140.41G"), (1023, "1023M")],
)
def test_a_size_is_never_shown_below_the_truth_nor_as_another_that_can_be_asked_for(mib: int, shown: str) -> None:
    assert format_memory(mib) == shown
    assert parse_memory(shown) >= mib
