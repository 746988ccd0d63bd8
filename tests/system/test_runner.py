"""The runner starts a job exactly as ordered, says what it came to, and explains what could not be started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runners import ORDER, PYTHON, Rig, rig_in
from wait import until

from workers.channel import pair
from workers.runs import read_exit_record, spawn_runner


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as made:
        yield made


# --- standing by ---------------------------------------------------------------------------------------------


def test_stands_by_apart_from_its_worker(rig: Rig) -> None:
    assert rig.wait_for("ready")["pid"] == rig.handle.pid
    assert os.getpgid(rig.handle.pid) == os.getsid(rig.handle.pid) == rig.handle.pid
    assert os.getpgid(rig.handle.pid) != os.getpgid(0)


def test_goes_home_when_its_worker_is_gone(rig: Rig) -> None:
    rig.wait_for("ready")
    rig.handle.channel.close()
    assert rig.handle.process.wait(5) == 0


def test_close_sends_home_before_it_is_even_ready(rig: Rig) -> None:
    rig.handle.close(timeout_s=5)
    assert rig.handle.process.returncode == 0


def test_term_ends_standing_by_and_int_and_hup_do_not(rig: Rig) -> None:
    rig.wait_for("ready")
    for signum in (signal.SIGINT, signal.SIGHUP):
        os.kill(rig.handle.pid, signum)
    assert rig.run(["true"])["exit_code"] == 0
    other = spawn_runner()
    other.channel.receive(10)
    os.kill(other.pid, signal.SIGTERM)
    assert other.process.wait(5) == 0
    other.close()


def test_death_of_the_runner_is_noticed(rig: Rig) -> None:
    rig.wait_for("ready")
    assert not rig.handle.gone
    os.kill(rig.handle.pid, signal.SIGKILL)
    assert rig.handle.channel.receive(5) is None
    assert rig.handle.gone
    with pytest.raises(OSError):
        rig.handle.feed(1.0)
    until(lambda: rig.handle.process.poll() == -signal.SIGKILL, what="its status")


def test_loads_nothing_heavy() -> None:
    code = "import sys, workers.runner; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["redis", "click", "rich", "pynvml", "psutil", "msgpack", "asyncio", "subprocess", "pathlib"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_module_in_the_current_directory_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    with rig_in(tmp_path) as rig:
        assert rig.run(["true"])["exit_code"] == 0


# --- ends ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 137, 255])
def test_exit_code(rig: Rig, code: int) -> None:
    record = rig.run(["sh", "-c", f"exit {code}"])
    assert (record["exit_code"], record["signal"], record["why"]) == (code, None, None)
    assert (record["killed"], record["error"]) == (False, None)
    assert read_exit_record(rig.run_dir, 3) == record
    assert read_exit_record(rig.run_dir, 4) is None
    assert rig.handle.process.wait(5) == 0
    assert {path.name for path in rig.run_dir.iterdir()} == {"exit.json", "output.log"}


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM])
def test_death_by_signal_from_elsewhere(rig: Rig, signum: signal.Signals) -> None:
    record = rig.run(["sh", "-c", f"kill -{int(signum)} $$"])
    assert (record["exit_code"], record["signal"], record["why"]) == (None, signum, None)
    assert record["killed"] is False


def test_record_has_usage_and_times(rig: Rig) -> None:
    began = time.time_ns() // 1_000_000
    code = "x = bytearray(64 << 20)\nimport time\nwhile time.process_time() < 0.2: pass\nprint('y' * 99)"
    record = rig.run([*PYTHON, code])
    assert record["max_rss_kib"] > 64 * 1024
    assert record["user_s"] + record["system_s"] >= 0.2
    assert record["output_bytes"] == 100
    assert began <= record["started_ms"] <= record["ended_ms"] <= time.time_ns() // 1_000_000
    assert (record["job"], record["born"], record["fence"]) == (7, 1, 3)


def test_started_names_the_process(rig: Rig) -> None:
    rig.start(["sleep", "30"])
    started = rig.wait_for("started")
    assert started["process"]["pid"] == started["pid"]
    assert os.getsid(started["pid"]) == started["pid"]
    assert Path(f"/proc/{started['pid']}/comm").read_text().strip() == "sleep"


def test_a_full_disk_does_not_eat_the_record(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no private mounts here")
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import json, pathlib, runners
small = pathlib.Path(sys.argv[1])
with runners.rig_in(small) as rig:
    record = rig.run(["sh", "-c", "dd if=/dev/zero of=$0/fill bs=4096; exit 5", str(small)])
    from workers.runs import read_exit_record
    print(json.dumps([record, read_exit_record(rig.run_dir, 3), rig.output().decode()]))
with runners.rig_in(tmp := pathlib.Path(sys.argv[1])) as rig:
    print(json.dumps(rig.run(["true"])))
"""
    shell = 'mount -t tmpfs -o size=128k none "$0" && exec "$@"'
    place = tmp_path / "small"
    place.mkdir()
    command = ["unshare", "-rm", "sh", "-c", shell, str(place), sys.executable, "-c", script, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    first, second = done.stdout.splitlines() or pytest.fail(done.stderr)
    told, kept, _ = json.loads(first)
    assert told["exit_code"] == 5
    assert kept == told
    assert "run directory" in json.loads(second)["error"]
    assert "free space" in json.loads(second)["error"]


# --- what the job gets ---------------------------------------------------------------------------------------


def test_arguments_arrive_verbatim(rig: Rig) -> None:
    code = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    given = ["", "-x", "a b", "$HOME", "*", ";", "'\"`", "two\nlines", "🦊", "\udcff\udc80", "--", ""]
    assert rig.run([*PYTHON, code, *given])["exit_code"] == 0
    assert rig.output().split(b"\0") == [text.encode("utf-8", "surrogateescape") for text in given]


def test_environment_arrives_verbatim_and_alone(rig: Rig) -> None:
    env = {**rig.env, "A": "two\nlines", "B": "\udcff🦊", "EMPTY": ""}
    assert rig.run(["/usr/bin/env", "-0"], env=env)["exit_code"] == 0
    wanted = {f"{name}={value}".encode("utf-8", "surrogateescape") for name, value in env.items()}
    assert set(rig.output().strip(b"\0").split(b"\0")) == wanted


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_the_workers_locale_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: str) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    monkeypatch.setenv("PYTHONUTF8", "0")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    with rig_in(tmp_path) as rig:
        assert rig.run(["printf", "%s", "é🦊\udcff"])["exit_code"] == 0
        assert rig.output() == "é🦊".encode() + b"\xff"


def test_umask_and_working_directory(rig: Rig, tmp_path: Path) -> None:
    place = tmp_path / "a place\nwith 🦊"
    place.mkdir()
    record = rig.run(["sh", "-c", "umask; pwd; echo x > made"], umask=0o137, cwd=str(place))
    assert record["exit_code"] == 0
    assert rig.output().decode() == f"0137\n{place}\n"
    assert (place / "made").stat().st_mode & 0o777 == 0o640
    assert (rig.run_dir / "exit.json").stat().st_mode & 0o777 == 0o600


def test_command_is_found_in_the_path_of_the_job(rig: Rig, tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        tool = tmp_path / name / "a-tool-of-ours"
        tool.write_text(f"#!/bin/sh\necho {name}\n")
        tool.chmod(mode)
    path = f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second"
    assert rig.run(["a-tool-of-ours"], env={**rig.env, "PATH": path})["exit_code"] == 0
    assert rig.output() == b"second\n"  # the first one is not executable, and execvp goes on too


def test_relative_command_is_found_in_the_working_directory(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\necho here\n")
    (tmp_path / "tool").chmod(0o755)
    assert rig.run(["./tool"], cwd=str(tmp_path))["exit_code"] == 0


def test_ten_megabytes_without_a_newline(rig: Rig) -> None:
    record = rig.run([*PYTHON, "import os\nfor _ in range(1000): os.write(1 + _ % 2, b'\\r' * 10000)"])
    assert record["output_bytes"] == 10_000_000
    assert rig.output() == b"\r" * 10_000_000


def test_input_is_empty(rig: Rig) -> None:
    assert rig.run(["cat"])["exit_code"] == 0
    assert rig.output() == b""


def test_no_descriptor_leaks_into_the_job(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        with rig_in(tmp_path) as rig:
            code = "import os; d = '/proc/self/fd/'; print([os.readlink(d + n) for n in '012'], os.listdir(d))"
            rig.run([*PYTHON, code], lock_fds=[reader])
            out = str(rig.run_dir / "output.log")
            assert rig.output().decode().strip() == f"{['/dev/null', out, out]} ['0', '1', '2', '3']"
    finally:
        os.close(reader)
        os.close(writer)


def test_signal_mask_and_dispositions_are_the_default(tmp_path: Path) -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD])
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGUSR2)}
    try:
        with rig_in(tmp_path) as rig:
            assert rig.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])["exit_code"] == 0
            library = 3 << 31  # 32 and 33 belong to the C library, which may leave them ignored
            masks = [int(line.split()[1], 16) & ~library for line in rig.output().splitlines()]
            assert masks == [0, 0]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in ignored.items():
            signal.signal(number, handler)


# --- what cannot be started ----------------------------------------------------------------------------------


def _files(place: Path) -> None:
    (place / "plain").write_text("echo no\n")
    (place / "text").write_text("no first line\n")
    (place / "text").chmod(0o755)
    (place / "interpreter").write_text("#!/no/such/shell\n")
    (place / "interpreter").chmod(0o755)
    (place / "directory").mkdir()


@pytest.mark.parametrize(
    ("argv", "changes", "words"),
    [
        (["no-such-command-at-all"], {}, "no-such-command-at-all' was not found in the job's PATH"),
        (["{place}/none"], {}, "none' does not exist here"),
        (["true/x"], {}, "does not exist here"),
        (["{place}/plain"], {}, "chmod +x"),
        (["{place}/text"], {}, "a first line like #!/bin/sh"),
        (["{place}/interpreter"], {}, "interpreter in its first line that does not exist"),
        (["{place}/directory"], {}, "is a directory"),
        ([], {}, "the command is empty"),
        ([""], {}, "empty text"),
        (["true", "a\0b"], {}, "NUL byte"),
        (["true", "\ud800"], {}, "cannot be encoded"),
        (["true", "x" * 200_000], {}, "too long"),
        (["true"], {"cwd": "{place}/none"}, "none' does not exist here: create it"),
        (["true"], {"cwd": "{place}/plain"}, "is not a directory"),
        (["true"], {"cwd": "directory"}, "not an absolute path"),
        (["true"], {"env": {"A=B": "c"}}, "cannot name an environment variable"),
        (["true"], {"clock": "sundial"}, "sundial"),
    ],
)
def test_launch_error(rig: Rig, tmp_path: Path, argv: list[str], changes: dict[str, Any], words: str) -> None:
    _files(tmp_path)
    argv = [part.replace("{place}", str(tmp_path)) for part in argv]
    changes = {k: v.replace("{place}", str(tmp_path)) if isinstance(v, str) else v for k, v in changes.items()}
    record = rig.run(argv, **changes)
    assert words in record["error"]
    assert (record["exit_code"], record["signal"], record["why"]) == (None, None, None)
    if "clock" not in changes:
        assert read_exit_record(rig.run_dir, 3) == record
    assert rig.handle.process.wait(5) == 0


def test_unwritable_output(rig: Rig) -> None:
    (rig.run_dir / "output.log").mkdir()
    record = rig.run(["true"])
    assert "output file" in record["error"]
    assert read_exit_record(rig.run_dir, 3) == record


def test_missing_run_directory_is_told(rig: Rig) -> None:
    assert "run directory" in rig.run(["true"], run_dir=str(rig.run_dir / "none"))["error"]


def test_no_more_processes() -> None:
    """Given a user at the limit of processes, when a job is started, then the record says so."""
    script = """
import os, resource, sys
from workers import runner
if os.getuid() == 0:  # root has no limit
    os.setgroups([]), os.setgid(61234), os.setuid(61234)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
sys.exit(runner.main(sys.argv[1:]))
"""
    with tempfile.TemporaryDirectory() as place:  # tmp_path lies where only its owner may go
        run_dir = Path(place)
        if os.getuid() == 0:
            os.chown(run_dir, 61234, 61234)
        channel, theirs = pair()
        command = [sys.executable, "-P", "-c", script, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        theirs.close()
        try:
            order = {**ORDER, "argv": ["true"], "run_dir": place, "feed_until": time.monotonic() + 60}
            channel.send({"op": "start", **order})
            while (message := channel.receive(10)) and message["op"] != "exited":
                pass
            assert message is not None
            assert "ulimit -u" in message["record"]["error"]
            assert read_exit_record(run_dir, 3) == message["record"]
        finally:
            channel.close()
            process.kill()
            process.wait()
