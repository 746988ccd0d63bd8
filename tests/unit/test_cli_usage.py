"""What the command line refuses by itself, before any server is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pretend import quiet_logs

from foxqueue.cli import main


@pytest.fixture(autouse=True)
def _no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("FOXQUEUE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FOXQUEUE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with quiet_logs():
        yield


@pytest.mark.parametrize("command", ["submit", "sweep", "ls", "pause"])
def test_a_command_is_explained_by_h(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-h"]) == 0
    first = capsys.readouterr().out
    assert main([command, "--help"]) == 0
    assert first == capsys.readouterr().out
    assert first.startswith("Usage:")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "x"], "positive whole number"),
        (["show", "0"], "positive whole number"),
        (["show", "1.5"], "positive whole number"),
        (["show", "٣"], "positive whole number"),
        (["logs", "9" * 30], "positive whole number"),
        (["cancel"], "which jobs? give numbers like 42 or 3,5-8"),
        (["requeue", "--dry-run"], "which jobs?"),
        (["wait", "--timeout", "1s"], "which jobs?"),
        (["cancel", "1", "x"], "positive whole number"),
        (["cancel", "8-5"], "runs backwards: write 5-8"),
        (["hold", "1-999999"], "too many, at most 100,000"),
        (["unhold", "3,"], "'' is not the number of a job"),
        (["cancel", "3", "--mine"], "numbers and --mine say different things"),
        (["cancel", "last", "--all"], "numbers and --all say different things"),
        (["cancel", "--all", "--name", "x", "--tag", "a"], "--all and --name and --tag say different things"),
        (["ls", "3", "--state", "failed"], "numbers and --state say different things"),
        (["failed", "3", "--group", "g"], "numbers and --group say different things"),
        (["wait", "--group", "a/b"], "letters, digits"),
        (["cancel", "--tag", "=x"], "NAME=VALUE, like model=dqn"),
        (["show", "x"], "or last for your newest"),
        (["reprioritize"], "give a priority before the jobs"),
        (["reprioritize", "8"], "which jobs?"),
        (["reprioritize", "42", "1"], "priority '42' is not understood"),
        (["reprioritize", "--front"], "which jobs?"),
        (["wait", "--timeout", "soon", "1"], "30m or 1h30m"),
        (["ls", "--state", "done"], "'pending'"),
        (["ls", "--limit", "0"], "x>=1"),
        (["submit", "--gpus", "2", "--", "true"], "0<=x<=1"),
        (["submit", "--gpus", "١", "--", "true"], "not a whole number"),
        (["submit", "--retries", "1_0", "--", "true"], "not a whole number"),
        (["ls", "--limit", "٣"], "not a whole number"),
        (["up", "--cpu", "٣"], "not a whole number"),
        (["up", "--lease-ttl", "0"], "300ms to 10m"),
        (["up", "--lease-ttl", "11m"], "300ms to 10m"),
        (["up", "--simulate", "lots"], "like 2x24G"),
        (["worker", "--gpu", "0", "--simulate", "0x1G"], "above 0"),
        (["submit", "-d", "", "--", "true"], "empty text"),
        (["submit", "-d", "/etc/passwd", "--", "true"], "is not a directory"),
        (["submit", "-d", "~no-such-user", "--", "true"], "no such user"),
        (["ls", "--url", "unix:///x?db=abc"], "number of a database"),
        (["ls", "--url", "redis://h:1?socket_timeout=1"], "not one of db, "),
        (["submit", "--retries", "-1", "--", "true"], "0<=x<=1000"),
        (["submit", "--visible", "all", "--", "true"], "'index', 'uuid'"),
        (["submit", "--tag", "x", "--", "true"], "NAME=VALUE"),
        (["submit", "--json", "--wait", "--", "true"], "--json goes with neither"),
        (["submit", "-e", "CUDA_VISIBLE_DEVICES=0", "--", "true"], "--visible"),
        (["submit"], "empty command"),
        (["submit", "--", ""], "empty command"),
        (["submit", "-p", "urgent", "--", "true"], "high (8)"),
        (["submit", "--gpu-memory", "8", "--", "true"], "8G or 512M"),
        (["submit", "-t", "30", "--", "true"], "30m or 1h30m"),
        (["submit", "--retry-delay", "x", "--", "true"], "30m or 1h30m"),
        (["submit", "-d", "/no/where", "--", "true"], "/no/where does not exist"),
        (["submit", "-e", "NOT_SET_ANYWHERE", "--", "true"], "not set here"),
        (["submit", "-e", "FOXQUEUE_X", "--", "true"], "another name"),
        (["logs", "-f", "--json", "1"], "--json goes not with"),
        (["up", "--lease-ttl", "2", "--simulate", "1x1G"], "30m or 1h30m"),
        (["worker"], "--gpu"),
        (["ls", "--url", ""], "it is empty"),
        (["ls", "--url", "http://x"], "redis://HOST"),
        (["--url", "redis://:pw/x@h/0", "ls"], "%2F"),
        (["ls", "--namespace", "a b"], "namespace"),
        (["nonsense"], "No such command"),
        (["submit", "-n", "a", "--name", "b", "--", "true"], "--name is given twice, and takes one value"),
        (["submit", "--notify", "a", "--notify", "b", "--", "true"], "--notify is given twice"),
        (["submit", "--expires", "1h", "--expires", "1h", "--", "true"], "--expires is given twice"),
        (["sweep", "--each-line", "a", "--each-line", "b", "--", "x"], "--each-line is given twice"),
        (["sweep", "--group", "a", "--group", "b", "--param", "x=1", "--", "{x}"], "--group is given twice"),
        (["pause", "--group", "a", "--group", "b"], "--group is given twice"),
        (["resume", "--device", "a", "--device", "b"], "--device is given twice"),
        (["drain", "--timeout", "1s", "--timeout", "2s"], "--timeout is given twice"),
        (["sweep", "--param", "lr=1", "-n", "x-{lr}", "--", "{lr}"], "--name-template"),
        (["sweep", "--param", "lr=1", "--param", "x=1"], "foxqueue sweep --param lr=1e-3,1e-4 -- python"),
        (["submit", "--retries", "1", "--retry-on", "75", "--", "true"], "always runs again later"),
        (["submit", "--", "echo", "x" * 131_072], "word 2 of the command ('xxxxxxxxxxxxxxxxxxxx'…) has 131,072 bytes"),
        (["submit", "-e", "A=" + "x" * 131_070, "--", "true"], "variable 'A' has 131,072 bytes"),
    ],
)
def test_usage_errors_exit_with_2_and_name_the_cure(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err.replace("\n", " ")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["show", "1"],
        ["logs", "1"],
        ["wait", "1"],
        ["cancel", "1"],
        ["requeue", "--all", "--cascade"],
        ["hold", "--mine"],
        ["unhold", "1-8"],
        ["reprioritize", "8", "last"],
        ["failed"],
        ["show", "last"],
        ["gpus"],
        ["stats"],
        ["submit", "--", "true"],
    ],
)
def test_without_a_server_the_cure_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "no server: run foxqueue up" in captured.err


def test_an_unexpected_error_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr("foxqueue.cli.cluster.client", fail)
    assert main(["gpus"]) == 1
    assert capsys.readouterr().err == (
        "foxqueue: unexpected ZeroDivisionError: by; set FOXQUEUE_LOG=debug for the traceback\n"
    )
    monkeypatch.setenv("FOXQUEUE_LOG", "debug")
    assert main(["gpus"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_bad_log_setting_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOXQUEUE_LOG", "loud")
    assert main(["ls"]) == 2
    assert "FOXQUEUE_LOG" in capsys.readouterr().err


def test_help_shows_the_commands_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert text.index("  submit ") < text.index("  ls ") < text.index("  gpus ") < text.index("  version ")
    for command in ("submit", "ls", "up", "wait", "logs"):
        assert main([command, "--help"]) == 0
        assert ("64 KiB" in " ".join(capsys.readouterr().out.split())) == (command in ("submit", "logs"))


def test_importing_foxqueue_is_cheap() -> None:
    heavy = "{'click', 'pynvml', 'redis', 'rich', 'msgpack', 'asyncio'}"
    code = f"import sys, foxqueue; print(sorted({heavy} & set(sys.modules)))"
    code += f"; foxqueue.Client; print(sorted(({heavy} - {{'redis', 'msgpack', 'asyncio'}}) & set(sys.modules)))"
    code += f"; import foxqueue.cli; print(sorted(({heavy} & set(sys.modules)) & {{'pynvml', 'rich'}}))"
    code += "; print(all(hasattr(foxqueue, name) for name in foxqueue.__all__), hasattr(foxqueue, 'Nothing'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "[]", "[]", "True False"]


def test_version_needs_neither_server_nor_redis() -> None:
    code = "import sys; from foxqueue.cli import main; main(['version']); print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["foxqueue 0.1.0", "False"]
