"""`foxqueue submit`: what can be asked for besides a command, in a script and beside it, refused or sent."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pretend import register
from queue_driver import Queue
from shell import Shell
from stack import Stack, until_exists
from wait import until

from foxqueue import Client, JobExists, JobGone, JobNotFound, judging
from foxqueue.codec import unpack


def spec_of(queue: Queue, number: int) -> Any:
    return unpack(queue.broker.redis.get(queue.broker.keys.spec(number)))


def script(shell: Shell, *lines: str, mode: int = 0o755, name: str = "train.sh") -> str:
    path = shell.directory / name
    path.write_text("\n".join(["#!/bin/sh", *lines, 'echo "$@"', ""]))
    path.chmod(mode)
    return name


def submit(shell: Shell, *words: str, code: int = 0, **environ: str) -> str:
    """What was said on stderr."""
    return shell.fox("submit", "-q", *words, code=code, **environ)[1]


# Parents


def test_parents_are_named_by_numbers_ranges_and_last(shell: Shell, queue: Queue) -> None:
    for _ in range(4):
        submit(shell, "--", "true")
    submit(shell, "--after", "1,2", "--after-any", "3-3", "--after-failed", "last", "--", "true")
    assert spec_of(queue, 5)["after"] == {"1": "succeeded", "2": "succeeded", "3": "any", "4": "failed"}
    assert queue.job(5)["state"] == "blocked"
    submit(shell, "--after", "1", "--after", "2-3,last", "--", "true")
    assert spec_of(queue, 6)["after"] == dict.fromkeys("1235", "succeeded")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--after", "1", "--after-any", "1"], 2, "two conditions"),
        (["--after", "1,1-1", "--after-any", "2,x"], 2, "not the number of a job"),
        (["--after", "2-1"], 2, "backwards"),
        (["--after", ""], 2, "not the number of a job"),
        (["--after", "1-1001"], 2, "more than 1,000 jobs"),
        (["--after", "1-99999999"], 2, "numbers are too many"),
        (["--after", "7"], 1, "no job 7"),
        (["--after", "last"], 1, "no job of"),
    ],
)
def test_parents_that_are_none_are_refused(shell: Shell, queue: Queue, words: list[str], code: int, text: str) -> None:
    if words[1] != "last":
        queue.enqueue()
    before = queue.snapshot()
    assert text in submit(shell, *words, "--", "true", code=code)
    assert queue.snapshot() == before


def test_a_handle_names_its_job_and_no_other(fox: Client, queue: Queue) -> None:
    parent = fox.submit(["true"])
    child = fox.submit(["true"], after=[parent])
    assert (child.state, queue.job(child.number)["parents"]) == ("blocked", "1")
    parent.born = str(int(parent.born) - 1)
    with pytest.raises(JobGone):
        fox.submit(["true"], after=parent)
    with pytest.raises(JobNotFound, match="99"):
        fox.submit(["true"], after_any=[99])
    assert [job.number for job in fox.jobs()] == [1, 2]


# Times


def test_a_start_is_shown_back_with_its_zone(shell: Shell, queue: Queue) -> None:
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    zone = {"TZ": "XYZ-3"}
    local = (tomorrow + timedelta(hours=3)).strftime("%Y-%m-%d %H:%M:%S")
    done = shell.start("submit", "-q", "--at", local, "--", "true", environ=zone)
    out, err = (stream.decode() for stream in done.communicate(timeout=60))
    assert (done.returncode, out) == (0, "1\n")
    assert f"starts at {local.replace(' ', 'T')}+03:00 (XYZ)" in err
    assert (queue.job(1)["state"], int(queue.job(1)["due_at"])) == ("scheduled", tomorrow.timestamp() * 1000)
    assert "2020-01-01T00:00:00+00:00 is past: the job is due at once" in submit(
        shell, "--at", "2020-01-01T00:00:00Z", "--", "true"
    )
    assert queue.job(2)["state"] == "pending"


def test_a_delay_and_an_expiry_reach_the_queue(shell: Shell, queue: Queue) -> None:
    submit(shell, "--delay", "10m", "--expires", "6h", "--", "true")
    job, born = queue.job(1), int(queue.job(1)["born"]) // 1000
    assert job["state"] == "scheduled"
    assert abs(int(job["due_at"]) - born - 600_000) <= 1
    assert abs(int(job["expires_at"]) - born - 21_600_000) <= 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--expires", "10m", "--delay", "1h"], "expire before"),
        (["--at", "2026-12-01T08:00:00Z", "--delay", "1h"], "give the one or the other"),
        (["--at", "tomorrow"], "RFC 3339"),
        (["--delay", "10"], "30m or 1h30m"),
        (["--if-exists", "return"], "--unique KEY"),
        (["--unique", "a\nb"], "printable"),
        (["--group", "a b"], "1 to 64 letters"),
        (["--retry-on", "3"], "--retries N"),
        (["--retry-on", "x", "--retries", "1"], "exit codes 1 to 255"),
        (["--retry-cap", "1s"], "below the retry delay"),
        (["--notify", "ftp://x"], "http://"),
        (["--config", "x.yaml"], ".json or .toml"),
        (["--config", "absent.json"], "No such file"),
        (["--script"], "--script -- ./train.sh"),
        (["-p", "10"], "0 to 9"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_server_is_asked(shell: Shell, words: list[str], text: str) -> None:
    err = submit(shell, *words, "--", "true", code=2, FOXQUEUE_URL="unix:///nowhere.sock")
    assert text in err.replace("\n", " ")


# Keys, groups, holds


def test_a_unique_job_is_refused_returned_or_replaced(shell: Shell, queue: Queue, fox: Client) -> None:
    submit(shell, "--unique", "nightly", "--", "true")
    assert "job 1 has the unique key 'nightly'" in submit(shell, "--unique", "nightly", "--", "true", code=1)
    with pytest.raises(JobExists):
        fox.submit(["true"], unique="nightly")
    assert fox.submit(["true"], unique="nightly", if_exists="return").number == 1
    words = ("--unique", "nightly", "--if-exists", "return", "--", "true")
    assert shell.fox("submit", *words)[0] == "job 1 has this unique key already\n"
    out, _ = shell.fox("submit", "-q", "--unique", "nightly", "--if-exists", "replace", "--", "true")
    assert out != "1\n"
    assert (queue.job(1)["state"], queue.job(int(out))["state"]) == ("cancelled", "pending")


def test_groups_holds_and_notices_reach_the_queue(shell: Shell, queue: Queue) -> None:
    submit(shell, "--group", "a.b-c_1", "--hold", "--notify", "true", "--gpu-memory", "8G", "--", "true")
    job = queue.job(1)
    assert (job["shape"], job["state"], "notify" in job) == ("g1.m8192@a.b-c_1", "blocked", True)
    assert job["held"] == spec_of(queue, 1)["user"]


def test_a_paused_queue_and_a_paused_group_are_told(fox: Client, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    register(queue, "SIM-1")
    fox.submit(["true"], group="g")
    assert fox.warnings == []
    monkeypatch.setattr(judging, "LOOK_KEPT_S", -1.0)
    assert queue.broker.pause("@g", "bad data", "ann")[0] == "ok"
    fox.submit(["true"])
    assert fox.warnings == []
    fox.submit(["true"], group="g")
    assert fox.warnings == ["group g is paused by ann: bad data: the job waits for foxqueue resume --group g"]
    assert queue.broker.pause("*", "", "bob")[0] == "ok"
    fox.submit(["true"])
    assert fox.warnings == ["the queue is paused by bob: the job waits for foxqueue resume"]


def test_what_is_paused_costs_no_call_of_its_own(fox: Client, queue: Queue) -> None:
    register(queue, "SIM-1")
    fox.submit(["true"])  # looks at the devices
    redis = queue.broker.redis
    before = redis.info("commandstats")
    for at in range(20):
        fox.submit(["true", str(at)])
    after = redis.info("commandstats")
    grown = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
    assert grown["cmdstat_evalsha"] == 20
    assert grown.get("cmdstat_hgetall", 0) <= 8  # at most another look, a second later


# Configurations, retries, scripts


def test_a_configuration_and_the_rules_of_retries_travel_along(shell: Shell, queue: Queue) -> None:
    (shell.directory / "c.toml").write_text("lr = 1e-3\n")
    submit(shell, "--config", "c.toml", "--retries", "2", "--retry-on", "3, signal", "--retry-cap", "1m", "--", "true")
    spec = spec_of(queue, 1)
    assert json.loads(spec["config"]) == {"lr": 0.001}
    assert (spec["retry_on"], spec["retry_cap_s"]) == (["3", "signal"], 60)


def test_a_copy_of_a_script_goes_along(shell: Shell, queue: Queue) -> None:
    script(shell, mode=0o600)
    submit(shell, "--script", "--", "train.sh", "a")
    spec = spec_of(queue, 1)
    assert (spec["argv"], spec["script"]) == (["./train.sh", "a"], (shell.directory / "train.sh").read_bytes())
    script(shell, "#FOX --script", mode=0o600)
    submit(shell, "train.sh")
    spec = spec_of(queue, 2)
    assert (spec["argv"], spec["script"]) == (["./train.sh"], (shell.directory / "train.sh").read_bytes())


def test_options_in_a_script_count_and_the_command_line_wins(shell: Shell, queue: Queue) -> None:
    script(
        shell, "#FOX -n 'from file' -p high --gpu-memory 8G", "#FOX -e A=1 -e B=1 --tag a=1", "", "# x", "#FOX --hold"
    )
    submit(shell, "-p", "low", "-e", "B=2", "train.sh", "--lr", "3")
    job, spec = queue.job(1), spec_of(queue, 1)
    assert (job["name"], job["priority"], job["shape"], job["state"]) == ("from file", "2", "g1.m8192", "blocked")
    assert spec["argv"] == ["./train.sh", "--lr", "3"]
    assert (spec["env"], spec["tags"]) == ({"A": "1", "B": "2"}, {"a": "1"})
    submit(shell, "--", "sh", "train.sh")  # another program: nothing is read
    assert (queue.job(2)["name"], queue.job(2)["priority"]) == ("", "5")


def test_a_script_that_is_not_executable_runs_by_its_interpreter(shell: Shell, queue: Queue) -> None:
    script(shell, "#FOX --gpus 0", mode=0o644)
    submit(shell, "train.sh", "x")
    assert spec_of(queue, 1)["argv"] == ["/bin/sh", "./train.sh", "x"]
    (shell.directory / "there").mkdir()
    submit(shell, "-d", "there", "./train.sh")
    assert spec_of(queue, 2)["argv"] == ["/bin/sh", str(shell.directory / "train.sh")]
    script(shell, mode=0o644)
    submit(shell, "train.sh")  # without #FOX lines it is the same
    assert spec_of(queue, 3)["argv"] == ["/bin/sh", "./train.sh"]
    script(shell, "#fox --hold", mode=0o644)
    assert "train.sh line 2 is not read: a line with options begins with #FOX" in submit(shell, "train.sh")
    (shell.directory / "bare").write_text("echo\n")
    assert "foxqueue submit -- sh bare" in submit(shell, "bare", code=2)


def test_a_job_that_is_held_says_how_it_is_let_go(shell: Shell, queue: Queue) -> None:
    process = shell.start("submit", "--hold", "--wait", "--", "true")
    until(lambda: queue.job(1).get("state") == "blocked", what="the job")
    queue.broker.cancel(1, "", "me")
    assert b"job 1 is held: foxqueue unhold 1 lets it go" in process.communicate(timeout=20)[1]


def test_a_child_that_can_never_run_is_told(shell: Shell, queue: Queue) -> None:
    submit(shell, "--", "true")
    queue.broker.cancel(1, "", "me")
    err = submit(shell, "--after", "1", "--", "true")
    assert "job 2 can never run and is cancelled (dependency_failed): " in err
    assert "never" not in submit(shell, "--", "true")


def test_children_of_many_that_can_never_run_are_told(fox: Client, queue: Queue) -> None:
    fox.submit(["true"]).cancel()
    fox.submit_many([{"argv": ["true"]}, {"argv": ["true"], "after": 1}, {"argv": ["true"], "after": "1-1"}])
    assert any(
        text.startswith("2 of the jobs can never run and are cancelled, the first is job 3 (dep")
        for text in fox.warnings
    )
    fox.submit_many([{"argv": ["true"], "after_any": 2}])
    assert "never" not in " ".join(fox.warnings)


def test_an_expiry_of_the_namespace_is_turned_off(shell: Shell, queue: Queue) -> None:
    queue.broker.change_settings({"expires_ms": "60000"}, "me")
    submit(shell, "--", "true")
    submit(shell, "--expires", "off", "--", "true")
    assert [bool(queue.job(number).get("expires_at")) for number in (1, 2)] == [True, False]


def test_the_url_of_a_notice_is_shown_without_what_is_secret(shell: Shell, queue: Queue) -> None:
    submit(shell, "--notify", "https://host/hook?token=sesame", "--", "true")
    out = shell.fox("show", "1")[0]
    assert "https://host/hook?token=***" in out and "sesame" not in out


def test_where_the_queue_is_may_stand_in_a_script_too(shell: Shell, queue: Queue) -> None:
    script(shell, "#FOX --namespace nightly")
    submit(shell, "train.sh")
    assert len(shell.json("ls", "--namespace", "nightly")) == 1
    submit(shell, "--namespace", "test", "train.sh")
    shell.fox("--namespace", "test", "submit", "-q", "train.sh")
    assert (len(shell.json("ls", "--namespace", "nightly")), len(shell.json("ls"))) == (1, 2)


@pytest.mark.parametrize(
    ("lines", "words", "place", "text"),
    [
        (["#FOX --nonsense"], [], 2, "No such option"),
        (["# x", "#FOX --gpus 7"], [], 3, "0<=x<=1"),
        (["#FOX -n"], [], 2, "requires an argument"),
        (["#FOX -n x # why"], [], 2, "'#' is no option"),
        (["#FOX --hold", "#FOX -p urgent"], [], 3, "high (8)"),
        (["#FOX --hold", "#FOX -t soon --hold"], ["-n", "x"], 3, "30m or 1h30m"),
        (["#FOX --tag x"], [], 2, "NAME=VALUE"),
        (["#FOX --after 0"], [], 2, "not the number of a job"),
        (["#FOX --config x.json"], [], 2, "No such file"),
        (["#FOX -d /no/where"], [], 2, "/no/where does not exist"),
        (["#FOX -n 'x"], [], 2, "No closing quotation"),
        (["#FOX --help"], [], 2, "--help is not read in #FOX lines"),
        (["#FOX -h"], [], 2, "--help is not read in #FOX lines"),
        (["#FOX --hold", "#FOX --url=redis://h"], [], 3, "--url is not read in #FOX lines"),
        (["#FOX --home /x"], [], 2, "--home is not read in #FOX lines"),
        (["#FOX -n a --name b"], [], 2, "--name is given twice"),
        (["#FOX -n a", "#FOX -n b"], [], None, "--name is given twice in the #FOX lines of train.sh"),
        (["#FOX --delay 1h", "#FOX --expires 1m"], [], None, "expire before"),
        (["#FOX --hold"], ["-p", "urgent"], None, "high (8)"),
    ],
)
def test_a_mistake_in_a_script_is_told_with_its_line(
    shell: Shell, queue: Queue, lines: list[str], words: list[str], place: int | None, text: str
) -> None:
    script(shell, *lines)
    err = submit(shell, *words, "train.sh", code=2)
    assert text in err.replace("\n", " ")
    assert (f"train.sh line {place}: " in err) == (place is not None)
    assert shell.json("ls") == []


def test_a_script_without_an_interpreter_is_refused(shell: Shell, queue: Queue) -> None:
    (shell.directory / "train.sh").write_text("#FOX --hold\necho\n")
    assert "first line like #!/bin/sh" in submit(shell, "train.sh", code=2)


def test_the_copy_is_what_runs_and_its_configuration_lies_beside_it(running: Stack) -> None:
    path = running.work / "train.py"
    text = """#!/usr/bin/env python3
    #FOX --script --delay 1s --config c.json
    import json, os, sys
    print({word!r}, sys.argv[1:], json.load(open(os.environ["FOXQUEUE_DIR"] + "/config.json")))
    """.replace("\n    ", "\n")
    path.write_text(text.format(word="kept"))
    (running.work / "c.json").write_text('{"lr": 0.5}')
    number = int(running.fox("submit", "-q", "train.py", "--x").stdout)
    path.write_text(text.format(word="changed since"))
    (running.work / "c.json").unlink()
    assert running.await_state(number, "succeeded", "failed")["state"] == "succeeded"
    assert running.fox("logs", str(number)).stdout == "kept ['--x'] {'lr': 0.5}\n"


def test_a_script_that_is_not_executable_runs(running: Stack) -> None:
    path = running.work / "train.sh"
    path.write_text("#!/bin/sh\n#FOX --tag a=b\necho $1 on $FOXQUEUE_JOB_ID\n")
    path.chmod(0o600)
    done = running.fox("submit", "--wait", "train.sh", "here")
    assert done.stdout == "here on 1\n"


def test_block_waits_for_room(running: Stack) -> None:
    flag = running.work / "go"
    running.fox("config", "set", "max_unfinished", "1")
    first = running.submit(*until_exists(flag))
    refused = running.fox("submit", "--", "true", check=False)
    assert (refused.returncode, "the queue is full: 1 unfinished" in refused.stderr) == (75, True)
    waits = running.start("submit", "--block", "--", "true")
    running.await_state(first, "running")
    assert waits.poll() is None
    flag.touch()
    assert waits.wait(30) == 0
    assert running.await_state(first + 1, "succeeded")["number"] == first + 1


# Repositories


def test_the_commit_is_recorded_where_there_is_one(shell: Shell, queue: Queue) -> None:
    submit(shell, "--", "true")
    assert "git" not in spec_of(queue, 1)
    environ = {**os.environ, "HOME": str(shell.directory)}
    identity = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    for words in (["init", "-q", "-b", "main"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", *identity, *words], cwd=shell.directory, env=environ, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=shell.directory, env=environ, capture_output=True, check=True
    )
    submit(shell, "--", "true")
    assert spec_of(queue, 2)["git"] == {"commit": head.stdout.decode().strip(), "branch": "main", "dirty": False}
    Path(shell.directory / "sub").mkdir()
    submit(shell, "-d", "sub", "--", "true")
    assert spec_of(queue, 3)["git"]["branch"] == "main"
