"""When a job may start, in the words of people and by the clocks on their walls."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from foxqueue import when
from foxqueue.errors import InvalidInput
from foxqueue.when import Moment, moment, times

BERLIN = "CET-1CEST,M3.5.0/2,M10.5.0/3"  # by its rules, so that no database of zones is needed


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Berlin; put back afterwards."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", BERLIN)
        time.tzset()
        yield patch
    time.tzset()


EIGHT = 1_796_108_400_000  # 2026-12-01T08:00:00+01:00


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-12-01T08:00:00+01:00", Moment(EIGHT, "2026-12-01T08:00:00+01:00")),
        ("2026-12-01T08:00:00.123456789+01:00", Moment(EIGHT + 123, "2026-12-01T08:00:00+01:00")),
        ("2026-12-01t07:00:00z", Moment(EIGHT, "2026-12-01T07:00:00+00:00")),
        (" 2026-12-01 08:00:00.250+01:00 ", Moment(EIGHT + 250, "2026-12-01T08:00:00+01:00")),
        ("2026-12-01 08:00", Moment(EIGHT, "2026-12-01T08:00:00+01:00 (CET)")),
        ("2026-12-01T08:00:00", Moment(EIGHT, "2026-12-01T08:00:00+01:00 (CET)")),
        ("2027-07-01 08:00:30", Moment(1_814_421_630_000, "2027-07-01T08:00:30+02:00 (CEST)")),
        (datetime(2026, 12, 1, 8), Moment(EIGHT, "2026-12-01T08:00:00+01:00 (CET)")),
        (datetime(2026, 12, 1, 7, tzinfo=UTC), Moment(EIGHT, "2026-12-01T07:00:00+00:00")),
    ],
)
def test_a_moment_is_the_same_however_it_is_written(zone: pytest.MonkeyPatch, given: object, expected: Moment) -> None:
    assert moment(given) == expected


@pytest.mark.parametrize(
    ("given", "readings"),
    [
        ("2026-10-25 02:30", "comes twice in .* give 2026-10-25T02:30:00.01:00 or 2026-10-25T02:30:00.02:00"),
        ("2026-10-25 02:00", "comes twice"),
        ("2027-03-28 02:30", "does not exist in .* give 2027-03-28T01:30:00.01:00 or 2027-03-28T03:30:00.02:00"),
        (datetime(2027, 3, 28, 2, 59, fold=1), "does not exist"),
    ],
)
def test_a_local_time_that_clocks_show_twice_or_never_is_refused_with_both_readings(
    zone: pytest.MonkeyPatch, given: object, readings: str
) -> None:
    with pytest.raises(InvalidInput, match=readings):
        moment(given)


@pytest.mark.parametrize("given", ["2026-10-25 01:59", "2026-10-25 03:00", "2027-03-28 01:59", "2027-03-28 03:00"])
def test_beside_a_change_of_clocks_all_is_plain(zone: pytest.MonkeyPatch, given: str) -> None:
    assert moment(given).shown.startswith(given.replace(" ", "T"))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("tomorrow", "it is not written as YYYY-MM-DD HH:MM"),
        ("08:00", "it names no day"),
        ("2026-12-01", "it names no time of day"),
        ("2026-12-01 8:00", "it is not written as"),
        ("2026-12-01 08:00 CET", "it is not written as"),
        ("2026-12-01T08:00+0100", r"its offset \+0100 is none, they go from -23:59 to \+23:59, like"),
        ("2026-12-01T08:00:00+01:60", r"its offset \+01:60 is none"),
        ("٢٠٢٦-12-01 08:00", "it is not written as"),
        ("2026-13-01 08:00", "is no moment .month must be in 1 to 12"),
        ("2026-02-29 08:00", "day"),
        ("2026-12-01 24:01", "hour"),
        ("2026-12-01T08:00:00+25:00", "offset"),
        ("9999-12-31 23:59:59-23:00", "this machine|over a year"),
        (1796108400, "not understood"),
        (True, "not understood"),
    ],
)
def test_what_is_no_moment_is_refused_with_what_is_allowed(zone: pytest.MonkeyPatch, given: object, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        times(None, given, None)


def test_the_zone_has_its_name_where_the_machine_knows_it(zone: pytest.MonkeyPatch, tmp_path: Path) -> None:
    zones = tmp_path / "zoneinfo"
    (zones / "Europe").mkdir(parents=True)
    (zones / "Europe/Berlin").touch()
    link = tmp_path / "localtime"
    link.symlink_to(zones / "Europe/Berlin")
    zone.setattr(when, "ZONEINFO", zones)
    zone.setattr(when, "LOCALTIME", link)
    here = datetime(2026, 12, 1, 8, tzinfo=timezone(timedelta(hours=1), "CET"))
    names = {}
    for value in (None, ":Europe/Berlin", BERLIN, "../../etc\0", ""):
        zone.delenv("TZ", raising=False)
        if value is not None:
            zone.setattr(when.os, "environ", {"TZ": value})
        names[value] = when._zone(here)
    assert names == {
        None: "Europe/Berlin",
        ":Europe/Berlin": "Europe/Berlin",
        BERLIN: "CET",
        "../../etc\0": "CET",
        "": "CET",
    }


@pytest.mark.parametrize("name", ["Berlin", ":Europe/Nowhere", "../../etc/passwd", "no\tzone"])
def test_a_zone_that_nobody_knows_makes_no_local_time(zone: pytest.MonkeyPatch, name: str) -> None:
    zone.setenv("TZ", name)
    with pytest.raises(InvalidInput, match=r"TZ is .* no zone of that name.* write the offset"):
        moment("2026-12-01 08:00")
    assert moment("2026-12-01T08:00:00+01:00").ms == EIGHT


@pytest.mark.parametrize("name", ["", "UTC", "CET-1", "<+01>-1", BERLIN, ":Europe/Berlin"])
def test_a_zone_by_name_or_rules_is_one(zone: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe/Berlin").touch()
    zone.setattr(when, "ZONEINFO", tmp_path)
    zone.setenv("TZ", name)
    assert moment("2026-12-01 08:00").shown.startswith("2026-12-01T08:00:00")


def test_a_note_says_when_it_starts_or_that_this_is_past() -> None:
    eight = moment("2026-12-01T08:00:00+01:00")
    assert eight.note(EIGHT - 1) == "starts at 2026-12-01T08:00:00+01:00"
    assert eight.note(EIGHT) == "2026-12-01T08:00:00+01:00 is past: the job is due at once"


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def test_times_are_told_to_the_queue_in_ms() -> None:
    assert times(None, None, None) == (None, "")
    assert times("10m", None, "1h30m") == (None, "delay_ms=600000\nexpires_ms=5400000\n")
    assert times(0.25, None, None).more == "delay_ms=250\n"
    assert times(0, None, 0.001).more == "expires_ms=1\n"
    found = times(None, soon(3600), "2h")
    assert found.start is not None
    assert found.more == f"at_ms={found.start.ms}\nexpires_ms=7200000\n"
    assert times("1h", None, "off").more == "delay_ms=3600000\nexpires_ms=off\n"
    assert times(None, None, " OFF ").more == "expires_ms=off\n"
    past = times(None, "2020-01-01T00:00:00Z", "1s")  # due at once, and worth a second
    assert past.more == "at_ms=1577836800000\nexpires_ms=1000\n"


@pytest.mark.parametrize(
    ("delay", "at", "expires", "text"),
    [
        ("10m", "2026-12-01T08:00:00Z", None, "give the one or the other"),
        (0, "2026-12-01T08:00:00Z", None, "give the one or the other"),
        ("2h", None, "1h", "expire before .* starts in 2h00m at the earliest and expires in 1h00m"),
        ("1h", None, "1h", "expire before"),
        pytest.param(None, soon(7200), "1h", "expire before", id="in two hours"),  # names must not tell the time
        (None, None, 0, "cancelled at once"),
        (None, None, 0.0001, "cancelled at once"),
        ("soon", None, None, "30m or 1h30m"),
        (-1, None, None, "delay -1"),
        (True, None, None, "delay True"),
        (float("nan"), None, None, "delay nan"),
        (None, None, "366d", "at most 365d"),
        pytest.param(None, soon(366 * 86400), None, "over a year ahead", id="in over a year"),
    ],
)
def test_times_that_contradict_each_other_are_refused(delay: object, at: object, expires: object, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        times(delay, at, expires)  # type: ignore[arg-type]
