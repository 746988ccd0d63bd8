"""Who has a device, as Redis keeps it and as people read it."""

from __future__ import annotations

import time

import pytest

from foxqueue.holders import Holder, clock, holder_text, job_holder, job_number, lease_token, read_holder

FENCE = 1_796_056_706_600_123
SINCE = FENCE // 1000
TOKEN = "00ff" * 4


def test_a_holder_is_read_back() -> None:
    text = holder_text("ann", "box", 4711, SINCE + 7_200_000, "notebook")
    assert read_holder(f"{FENCE} lease:{TOKEN}", text) == Holder(
        "ann", "box", 4711, "notebook", None, SINCE, SINCE + 7_200_000, FENCE
    )
    taken = read_holder(f"{FENCE} released_lease:{TOKEN}", text + "\troot")
    assert taken is not None and taken.taken_by == "root" and "taken away by root" in taken.shown


def test_what_could_be_its_own_signs_becomes_a_space() -> None:
    text = holder_text("a\tb", "box\n", 1, None, "x\r\n\ty\x1b[0m\u2028z" + "w" * 100)
    assert text.count("\t") == 4 and "\n" not in text and "\x1b" not in text
    found = read_holder(f"{FENCE} lease:{TOKEN}", text)
    assert found is not None and (found.user, found.host, found.until_ms) == ("a b", "box", None)
    assert len(found.label) == 60


@pytest.mark.parametrize(
    "grant",
    ["", "-", f"{FENCE} job:7", f"{FENCE} -", f"{FENCE} -:{TOKEN}", "x lease:y", "lease:00", "9" * 30 + " lease:00"],
)
def test_other_grants_are_no_leases(grant: str) -> None:
    assert read_holder(grant, "ann\tbox\t1\t\tx") is None and lease_token(grant) is None


def test_a_text_that_is_gone_or_torn_is_nobody_known() -> None:
    assert lease_token(f"{FENCE} lease:{TOKEN}") == TOKEN
    for text in (None, "", "ann", "\t\t\t\t\t\t\t", "ann\tbox\tx\ty"):
        found = read_holder(f"{FENCE} lease:{TOKEN}", text)
        assert found is not None and found.pid is None and found.until_ms is None
        assert found.shown.startswith(("somebody", "ann"))


def test_jobs_are_holders_too() -> None:
    assert job_number(f"{FENCE} released:7") == 7 and job_number(f"{FENCE} lease:{TOKEN}") is None
    found = job_holder(f"{FENCE} job:7", "ann", "box")
    assert found is not None and found.job == 7 and found.shown == "job 7 of ann on box"
    assert job_holder(f"{FENCE} lease:{TOKEN}", "ann", "box") is None


def test_times_are_those_of_the_clock_here() -> None:
    now = time.time()
    text = Holder("ann", "box", 4711, "notebook", None, round(now * 1000), None, FENCE).shown
    assert text == f'ann on box (pid 4711, "notebook") since {time.strftime("%H:%M:%S", time.localtime(now))}'
    assert clock(SINCE).startswith(time.strftime("%Y-%m-%d ", time.localtime(SINCE / 1000)))
    assert clock(10**30) == "an unknown time"
