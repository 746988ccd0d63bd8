"""A full server drains: workers end their runs there, whatever of the output it does not take."""

from __future__ import annotations

from pathlib import Path

from wait import until
from workplace import Workplace, workplace


def fill(place: Workplace) -> None:
    """Whatever needs memory is refused from now on."""
    place.broker.redis.config_set("maxmemory-policy", "noeviction")
    place.broker.redis.config_set("maxmemory", 1)


def test_runs_with_output_end_on_a_full_server(tmp_path: Path) -> None:
    """Given a run and a waiting job that write, when the server becomes full: both end, and their files are whole."""
    flag = tmp_path / "flag"
    words = "for number in 1 2 3 4 5; do echo line $number; done"
    with workplace(tmp_path) as place:
        place.start()
        jobs = [place.put("sh", "-c", f"until [ -e {flag} ]; do sleep 0.02; done; {words}") for _ in range(2)]
        jobs.append(place.put("sh", "-c", f"{words}; exit 3"))
        place.await_state(jobs[0], "running")
        fill(place)
        flag.touch()
        ends = [place.await_state(number, "succeeded", "failed", seconds=30) for number in jobs]
        assert [end["state"] for end in ends] == ["succeeded", "succeeded", "failed"]
        assert all(end["losses"] == "0" for end in ends)
        assert [place.output(number) for number in jobs] == ["", "", ""]
        files = list(place.stack.home.rglob("output.log"))
        assert len(files) == 3 and all(path.read_text().endswith("line 5\n") for path in files)


def test_output_goes_when_there_is_room_again(tmp_path: Path) -> None:
    """Given a run that writes on a full server for longer than its end would wait, when there is room: it is there."""
    flag = tmp_path / "flag"
    with workplace(tmp_path) as place:
        place.start()
        number = place.put("sh", "-c", f"until [ -e {flag} ]; do sleep 0.02; done; echo late; sleep 600")
        place.await_state(number, "running")
        fill(place)
        flag.touch()
        refused = until(lambda: refusals(place), what="a refusal")
        until(lambda: refusals(place) > refused + 5, what="more of them")
        assert place.output(number) == ""
        place.broker.redis.config_set("maxmemory", 0)
        until(lambda: place.output(number) == "late\n", what="its output")


def refusals(place: Workplace) -> int:
    """How often the server has refused for lack of memory."""
    return int(place.broker.redis.info("errorstats").get("errorstat_OOM", {}).get("count", 0))
