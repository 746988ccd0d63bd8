"""When jobs start: far beyond every lease, by clocks of any zone, once, and whoever is there to see the moment come."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from stack import Stack, until_exists
from test_reports_server import kill_server
from test_reports_twice import marking
from wait import until

LEASE_S = 4.0  # ttl and margin together
BERLIN = {"TZ": "Europe/Berlin"}
HOUR_MS = 3_600_000


def holders(stack: Stack, number: int) -> list[str]:
    """Whoever holds a job: grants of devices, the set of the running, workers' claims, devices' leases."""
    redis: Any = stack.api.redis
    keys, fence = stack.api.broker.keys, stack.job(number)["fence"]
    grants = [
        f"grant of {device!r}" for device, grant in redis.hgetall(keys.granted).items() if b":%d" % number in grant
    ]
    claims = [
        f"claim of {worker!r}" for worker, got in redis.hgetall(keys.claims).items() if got.endswith(b":%d" % number)
    ]
    leases = [f"lease of {uuid}" for uuid in stack.devices() if fence and redis.get(keys.lease(uuid)) == fence.encode()]
    return grants + claims + leases + ["running"] * (redis.zscore(keys.running, str(number)) is not None)


def due(stack: Stack, number: int) -> float | None:
    """Its score among the scheduled jobs, epoch milliseconds."""
    found: Any = stack.api.redis.zscore(stack.api.broker.keys.scheduled, str(number))
    return None if found is None else float(found)


def due_ms(stack: Stack, number: int) -> int:
    """Its moment, as it says itself."""
    found = stack.api.job(number).view.due_ms
    assert found is not None
    return found


def bring(stack: Stack, number: int) -> None:
    """As if the hours until its moment had passed."""
    assert (
        stack.api.redis.zadd(
            stack.api.broker.keys.scheduled, {str(number): stack.api.broker.server_time_ms()}, xx=True, ch=True
        )
        == 1
    )


def ms_of(text: str) -> int:
    """RFC 3339 as it is shown, which is UTC."""
    assert text.endswith("Z")
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# --- B1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_b1_no_lease_ends_a_long_job_or_brings_a_delayed_one(stack: Stack) -> None:
    """Four workers, three long jobs, jobs due in an hour and far beyond a lease, and a crash of the server between."""
    stack.up("--simulate", "4x24G", "--lease-ttl", "2s", workers=4)
    marks, flag = stack.root / "marks", stack.root / "flag"
    long = [stack.queue(*marking(marks, *until_exists(flag))) for _ in range(3)]
    for number in long:
        stack.await_state(number, "running")
    fences = [stack.job(number)["fence"] for number in long]
    in_an_hour = stack.submit(*marking(marks), flags=("--delay", "1h"))
    tomorrow = stack.submit(*marking(marks), flags=("--at", f"{datetime.now(UTC) + timedelta(days=1):%FT%TZ}"))
    soon = stack.submit(*marking(marks), flags=("--delay", f"{LEASE_S + 1:g}s"))
    waiting = (in_an_hour, tomorrow, soon)
    scores = {number: due(stack, number) for number in waiting}
    assert abs((scores[in_an_hour] or 0) - ms_of(stack.job(in_an_hour)["submitted_at"]) - HOUR_MS) <= 1
    kill_server(stack)
    assert {number: due(stack, number) for number in waiting} == scores
    held: set[str] = set()

    def started() -> bool:
        held.update(*(holders(stack, number) for number in waiting if due(stack, number) is not None))
        return due(stack, soon) is None

    until(started, LEASE_S + 12, "the start of the job that is due", every=0.05)
    began = stack.await_state(soon, "succeeded")
    assert not held
    assert ms_of(began["started_at"]) >= (scores[soon] or 0)
    for number in (in_an_hour, tomorrow):
        now = stack.show(number)
        assert (now["state"], now["waiting_for"], now["attempts"]) == ("scheduled", "scheduled", 0)
        assert [event["event"] for event in stack.events(number)] == ["enqueue"]
        assert due(stack, number) == scores[number] == ms_of(now["due_at"])
    bring(stack, in_an_hour)
    stack.await_state(in_an_hour, "succeeded")
    flag.touch()
    for number, fence in zip(long, fences, strict=True):
        done = stack.await_state(number, "succeeded")
        assert (done["attempts"], done["losses"], done["fence"]) == (1, 0, fence)
    for number in (*long, soon, in_an_hour):
        assert len(stack.events(number, "claim")) == 1
    assert len(marks.read_text().split()) == len(long) + 2


def test_b1_a_job_that_waits_for_its_time_and_for_more_starts_when_all_has_come(quick: Stack) -> None:
    """Delayed and held, delayed and behind a parent: whichever comes last; a moment that is past is not waited for."""
    hour, second = ("--delay", "1h"), ("--delay", "1s")
    flag = quick.root / "flag"
    parent = quick.queue(*until_exists(flag))
    quick.await_state(parent, "running")
    after = ("--after", str(parent))
    late, early = (quick.submit("true", flags=(*flags, *after)) for flags in (hour, second))
    held_late, held_early = (quick.submit("true", flags=(*flags, "--hold")) for flags in (hour, second))
    every = (late, early, held_late, held_early)
    until(
        lambda: quick.api.broker.server_time_ms() > max(due_ms(quick, early), due_ms(quick, held_early)), 10, "a second"
    )
    assert [quick.job(number)["state"] for number in every] == ["blocked"] * 4
    assert [due(quick, number) for number in every] == [None] * 4
    flag.touch()
    quick.fox("unhold", f"{held_late},{held_early}")
    for number in (early, held_early):
        quick.await_state(number, "succeeded")
    for number in (late, held_late):
        quick.await_state(number, "scheduled")
        assert due(quick, number) == due_ms(quick, number)
        bring(quick, number)
        quick.await_state(number, "succeeded")
    assert [len(quick.events(number, "claim")) for number in every] == [1] * 4


# --- J1 ----------------------------------------------------------------------------------------------------------


def test_j1_every_way_to_write_a_moment_is_the_same_moment_in_utc(running: Stack) -> None:
    """With an offset, with Z, and by the clocks of another zone, which is named back; everybody sees UTC."""
    noon = (datetime.now(UTC) + timedelta(days=40)).replace(hour=12, minute=30, second=5, microsecond=0)
    local = noon.astimezone(ZoneInfo(BERLIN["TZ"]))
    india = noon.astimezone(timezone(timedelta(hours=5, minutes=30)))
    ways = {
        f"{noon:%FT%TZ}": f"{noon.isoformat()}",
        india.isoformat(): india.isoformat(),
        f"{local:%F %T}": f"{local.isoformat()} (Europe/Berlin)",
        f"{local:%FT%T}": f"{local.isoformat()} (Europe/Berlin)",
        local.isoformat(): local.isoformat(),
    }
    for given, shown in ways.items():
        done = running.fox("submit", "-q", "--at", given, "--", "true", environ=BERLIN)
        number = int(done.stdout)
        assert f"starts at {shown}\n" in done.stderr
        assert due(running, number) == noon.timestamp() * 1000
    for zone in ("Europe/Berlin", "Asia/Kolkata"):
        found = json.loads(running.fox("show", str(number), "--json", environ={"TZ": zone}).stdout)
        assert found["due_at"] == f"{noon:%FT%T}.000Z"
        assert f"{noon:%FT%T}.000Z" in running.fox("show", str(number), environ={"TZ": zone}).stdout
    told = running.fox("events", "--job", str(number), environ=BERLIN).stdout.split()[0]
    assert told.endswith("Z") and told[:19] == found["submitted_at"][:19]
    assert [job.state for job in running.api.jobs()] == ["scheduled"] * len(ways)


def test_j1_a_naive_moment_in_python_is_local_too(running: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", BERLIN["TZ"])
    time.tzset()
    try:
        noon = (datetime.now(UTC) + timedelta(days=40)).replace(hour=12, minute=0, second=0, microsecond=0)
        local = noon.astimezone(ZoneInfo(BERLIN["TZ"]))
        for given in (noon, local, local.replace(tzinfo=None), f"{local:%F %T}"):
            assert due(running, running.queue("true", at=given)) == noon.timestamp() * 1000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("given", "text", "instead"),
    [
        (
            "2027-03-28 02:30",
            "does not exist in Europe/Berlin",
            ("2027-03-28T01:30:00+01:00", "2027-03-28T03:30:00+02:00"),
        ),
        (
            "2027-10-31 02:30",
            "comes twice in Europe/Berlin",
            ("2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00"),
        ),
    ],
    ids=["gap", "twice"],
)
def test_j1_an_hour_that_clocks_do_not_show_once_is_refused(
    running: Stack, given: str, text: str, instead: tuple[str, str]
) -> None:
    """Refused with what to write instead; the same words are a moment where clocks are not changed then."""
    done = running.fox("submit", "--at", given, "--", "true", check=False, environ=BERLIN)
    assert (done.returncode, done.stdout) == (2, "") and text in done.stderr
    assert all(moment in done.stderr for moment in instead)
    assert not running.api.jobs()
    accepted = running.fox("submit", "-q", "--hold", "--at", given, "--", "true", check=False, environ={"TZ": "UTC"})
    over_a_year = "over a year ahead" in accepted.stderr
    assert over_a_year or int(accepted.stdout) == 1


def test_j1_a_job_starts_at_its_moment_whatever_zone_its_worker_is_in(stack: Stack) -> None:
    """Server and worker live in one zone, who submits in another."""
    stack.environ["TZ"] = "America/New_York"
    stack.up("--simulate", "1x24G", "--lease-ttl", "2s", workers=1)
    moment = datetime.now(timezone(timedelta(hours=5, minutes=30))) + timedelta(seconds=2)
    done = stack.fox("submit", "-q", "--at", moment.isoformat(), "--", "date", "+%Z", environ=BERLIN)
    ended = stack.await_state(int(done.stdout), "succeeded")
    late_ms = ms_of(ended["started_at"]) - moment.timestamp() * 1000
    assert -1 <= late_ms < 5000  # an idle worker asks once a beat
    assert stack.fox("logs", done.stdout.strip()).stdout.strip() in ("CET", "CEST")  # its submitter's


# --- O3: whoever is there brings the moment -----------------------------------------------------------------------


@pytest.mark.parametrize("why", ["retry", "delay"])
@pytest.mark.parametrize("who", ["wait", "logs"])
def test_o3_a_waiting_client_alone_brings_a_job_whose_time_has_come(stack: Stack, who: str, why: str) -> None:
    """The only worker is killed before; nobody but somebody who waits for the job is there."""
    stack.serve()
    worker = stack.start_worker("sim:0", "--simulate", "1x24G")
    later = {"retries": 1, "retry_delay": "1s"} if why == "retry" else {"delay": "1s"}
    until(stack.api.workers, 20, "the worker")
    number = stack.queue("sh", "-c", "[ $FOXQUEUE_ATTEMPT = 2 ]", **later)
    stack.await_state(number, "scheduled")
    worker.kill()
    worker.wait(10)
    client = stack.start(who, *(("-f",) if who == "logs" else ()), str(number))
    job = stack.await_state(number, "pending", seconds=15)
    assert (job["attempts"], job["losses"]) == (1 if why == "retry" else 0, 0)
    assert client.poll() is None
    assert [event["event"] for event in stack.events(number, "promote")] == ["promote"]
    if why == "retry":
        stack.start_worker("sim:0", "--simulate", "1x24G")
        assert stack.await_state(number, "succeeded")["attempts"] == 2
        assert client.wait(20) == 0
