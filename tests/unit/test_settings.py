"""Settings of the namespace as people write them."""

from __future__ import annotations

import pytest

from foxqueue.errors import InvalidInput
from foxqueue.settings import OFF, SETTINGS, change


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("aging", "4h", "aging_us", "14400000000"),
        ("aging", "off", "aging_us", str(365 * 86400 * 10**6)),
        ("max_losses", "10", "max_losses", "10"),
        ("max_result", "512K", "max_result_bytes", str(512 * 1024)),
        ("max_result", "64m", "max_result_bytes", str(64 * 1024**2)),
        ("retain_finished", "1d", "retain_finished_ms", "86400000"),
        ("retain_failed", "off", "retain_failed_ms", str(OFF)),
        ("retain_failed_count", "0", "retain_failed_count", "0"),
        ("retain_finished_count", "OFF", "retain_finished_count", str(OFF)),
        ("occupied_over", "1g", "occupied_over_mib", "1024"),
        ("occupied_over", "256M", "occupied_over_mib", "256"),
        ("ignore_processes", "Xorg, my tool,Xorg", "ignore_processes", "Xorg,my tool"),
        ("ignore_processes", "none", "ignore_processes", ""),
        ("admission_samples", "5", "admission_samples", "5"),
        ("memory_return", "500ms", "memory_return_ms", "500"),
        ("fast_failures", "off", "fast_failures", str(OFF)),
        ("priority.DQN", "high", "priority:dqn", "8"),
        ("priority.my model", "3", "priority:my model", "3"),
        ("priority.dqn", "default", "priority:dqn", None),
        ("aging", "default", "aging_us", None),
    ],
)
def test_what_is_written_goes_into_a_field(name: str, text: str, field: str, value: str | None) -> None:
    assert change(name, text) == (field, value)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_shown_can_be_written(name: str) -> None:
    setting = SETTINGS[name]
    samples = ("1s", "90m", "1d", "off", "5", "7", "100", "1K", "1M", "1536K", "1G", "300M", "2s", "none", "a,b c")
    values = []
    for text in samples:
        try:
            values.append(setting.parse(text))
        except (InvalidInput, ValueError):
            continue
    assert len(values) > 1
    assert [setting.parse(setting.show(value)) for value in values] == values


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("aging", "", "aging '' is not possible: give a time from 1s to 30d, or off"),
        ("aging", "31d", "1s to 30d"),
        ("aging", "500ms", "1s to 30d"),
        ("aging", "4", "1s to 30d"),
        ("max_losses", "0", "1 to 1000"),
        ("max_losses", "-1", "1 to 1000"),
        ("max_losses", "٣", "1 to 1000"),
        ("max_losses", "1_0", "1 to 1000"),
        ("max_result", "65M", "1K to 64M"),
        ("max_result", "1", "1K to 64M"),
        ("max_result", "", "1K to 64M"),
        ("retain_finished", "0", "1s to 365d"),
        ("retain_finished", "for ever", "1s to 365d"),
        ("retain_failed_count", "1e3", "a number of jobs, or off"),
        ("priority.dqn", "10", "0 to 9"),
        ("priority.", "5", "names no model type"),
        ("priority." + "x" * 65, "5", "names no model type"),
        ("occupied_over", "0", "a size from 1M to 1024G"),
        ("occupied_over", "1025G", "a size from 1M to 1024G"),
        ("occupied_over", "1.5G", "a size from 1M to 1024G"),
        ("ignore_processes", "", "names of commands with commas between them"),
        ("ignore_processes", "Xorg,,x", "names of commands"),
        ("ignore_processes", "x" * 1001, "names of commands"),
        ("ignore_processes", "a\nb", "names of commands"),
        ("admission_samples", "0", "1 to 30"),
        ("memory_return", "11m", "a time from 100ms to 10m"),
        ("memory_return", "0", "a time from 100ms to 10m"),
        ("fast_failures", "0", "1 to 1000, or off"),
        ("lease", "5s", "--lease-ttl"),
        ("colour", "red", "there is no setting 'colour': give aging, max_unfinished"),
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(name: str, text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        change(name, text)
    assert message in str(caught.value)
