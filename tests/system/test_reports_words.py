"""What a job is given: its words, its environment, its directory; and what it gives: output without line ends."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from stack import FOXQUEUE, Stack, ended
from wait import until

WORDS: list[bytes] = [
    b"",
    b" ",
    b"two words",
    b"$HOME",
    b"${PATH}",
    b"`id`",
    b"$(id)",
    b"*",
    b"~",
    b";",
    b"&& false",
    b"|",
    b"'",
    b'"',
    b'it\'s "quoted"',
    b"\\",
    b"\\n",
    b"line\nbreak",
    b"tab\t",
    b"\r",
    b"-x",
    b"--json",
    b"--",
    b"-",
    b"%s",
    b"{}",
    b"[bold]",
    b"#",
    b"!",
    "🦊 füchse".encode(),
    "e\u0301\u202e".encode(),
    b"\xff\xfe\x80 no utf-8",
    b"\x1b[31m",
    b"a=b",
    b"x" * 20_000,
    b"",
]
ECHO = "import os, sys; print([os.fsencode(word).hex() for word in sys.argv[1:]], os.environb.get(b'ODD', b'').hex())"
LAST = b"step 99999/99999"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A foxqueue whose workers were started with next to no environment, as a service manager does."""
    root = tmp_path_factory.mktemp("words")
    with ended(Stack(root)) as stack:
        full = stack.environ
        kept = ("FOXQUEUE_HOME", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "PYTHONPATH")
        bare = {name: value for name, value in stack.environ.items() if name in kept}
        stack.environ = {**bare, "PATH": "/usr/bin:/bin", "WORKERS_OWN": "1", "CUDA_CACHE_PATH": "/workers"}
        stack.up()
        stack.environ = full
        yield stack
    shutil.rmtree(root, ignore_errors=True)


def submit(stack: Stack, *words: str | bytes, **options: object) -> subprocess.CompletedProcess[bytes]:
    """``foxqueue submit …`` from bytes, as a shell starts it."""
    environ = {**stack.environ, **dict(options.pop("environ", {}))}  # type: ignore[call-overload]
    options = {"cwd": stack.work, **options}
    done = subprocess.run(
        [str(FOXQUEUE), "submit", "--quiet", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done


def output_of(stack: Stack, number: int | bytes) -> str:
    stack.await_state(int(number), "succeeded")
    return stack.api.job(int(number)).logs().decode()


# --- words --------------------------------------------------------------------------------------------


def test_words_arrive_as_they_were_written(shared: Stack) -> None:
    """I1: through the command line and through Python, in arguments and in variables."""
    expected = f"{[word.hex() for word in WORDS]} {b'odd =$HOME'.hex()}fe\n"
    command = [sys.executable, "-S", "-c", ECHO, *WORDS]
    by_command = submit(shared, "-e", b"ODD=odd =$HOME\xfe", "--", *command).stdout
    assert output_of(shared, by_command) == expected
    odd = os.fsdecode(b"odd =$HOME\xfe")
    by_python = shared.queue(*command, env={"ODD": odd})
    assert output_of(shared, by_python) == expected
    for number in (int(by_command), by_python):
        listed = json.loads(shared.fox("show", str(number), "--json").stdout)["command"]
        assert [os.fsencode(word) for word in listed[4:]] == WORDS
        shown = shared.fox("show", str(number)).stdout
        assert "\x1b" not in shown and "\u202e" not in shown, "a word must not redraw the reader's terminal"


def test_the_program_itself_may_have_any_name(shared: Stack) -> None:
    """I1: blanks, a leading dash, bytes that are not UTF-8; from PATH and by path; no shell in between."""
    folder = os.fsencode(shared.work) + b"/odd \xff dir; $x"
    Path(os.fsdecode(folder)).mkdir()
    for name in (b"-run me", b"\xfe*", b"$(touch gone)"):
        path = folder + b"/" + name
        Path(os.fsdecode(path)).write_text('#!/bin/sh\necho "$PWD" "$#"\n')
        Path(os.fsdecode(path)).chmod(0o755)
        by_path = submit(shared, "--", path, "", "a b").stdout
        in_path = submit(shared, "--", name, "", "a b", environ={"PATH": os.fsdecode(folder)}).stdout
        in_cwd = submit(shared, "-d", folder, "--", b"./" + name, "", "a b").stdout
        assert output_of(shared, by_path) == output_of(shared, in_path) == f"{shared.work} 2\n"
        shared.await_state(int(in_cwd), "succeeded")
        assert shared.api.job(int(in_cwd)).logs() == folder + b" 2\n"


# --- surroundings -------------------------------------------------------------------------------------


def test_a_job_has_its_submitters_surroundings_and_not_its_workers(shared: Stack) -> None:
    """I2: variables, directory, umask; the worker's own variables stay out; CUDA_* is the worker's alone."""
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd(), os.umask(0)]))"
    where = shared.root / "else where"
    where.mkdir(exist_ok=True)
    environ = {"MINE": "ä b\nc", "CUDA_VISIBLE_DEVICES": "5", "CUDA_HOME": "/cuda", "OLDPWD": "/", "SHLVL": "3"}
    done = submit(shared, "--", sys.executable, "-S", "-c", code, environ=environ, cwd=where, umask=0o027)
    found, cwd, umask = json.loads(output_of(shared, done.stdout))
    assert (cwd, umask, found["MINE"]) == (str(where), 0o027, environ["MINE"])
    assert found["PATH"] == shared.environ["PATH"] and found["HOME"] == shared.environ["HOME"]
    assert "WORKERS_OWN" not in found
    assert {name: value for name, value in found.items() if name.startswith("CUDA_")} == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "",
    }
    ours = {name for name in found if name.startswith("FOXQUEUE_")}
    wanted = {"JOB_ID", "ATTEMPT", "FENCE", "GPUS", "DIR", "RUN"}
    assert ours == {f"FOXQUEUE_{name}" for name in wanted}
    assert found["FOXQUEUE_JOB_ID"] == done.stdout.decode().strip() and Path(found["FOXQUEUE_DIR"]).is_dir()
    assert b"CUDA_HOME" in done.stderr and b"CUDA_VISIBLE_DEVICES" in done.stderr


def test_a_virtual_environment_that_is_active_at_submission_is_used(shared: Stack) -> None:
    """I2: its python comes first on the submitter's PATH; the worker's PATH is minimal."""
    place = shared.root / "venv"
    venv.create(place, with_pip=False, symlinks=True)
    environ = {"PATH": f"{place}/bin:{shared.environ['PATH']}", "VIRTUAL_ENV": str(place)}
    code = "import os, sys; print(sys.prefix, os.environ['VIRTUAL_ENV'])"
    done = submit(shared, "--", "python", "-c", code, environ=environ)
    assert output_of(shared, done.stdout) == f"{place} {place}\n"


def test_secrets_stay_behind_unless_they_are_passed(shared: Stack) -> None:
    """I2: left out, told by name and never by value; -e NAME and -e NAME=VALUE pass one."""
    secrets = {
        "WANDB_API_KEY": "hush-1",
        "HF_TOKEN": "hush-2",
        "DB_PASSWORD": "hush-3",
        "AWS_SECRET_ACCESS_KEY": "hush-4",
    }
    command = ("sh", "-c", "env | grep hush; true")
    kept = submit(shared, "--", *command, environ=secrets)
    assert output_of(shared, kept.stdout) == ""
    for name in secrets:
        assert name.encode() in kept.stderr
    assert b"-e NAME" in kept.stderr and b"hush" not in kept.stderr
    keys = shared.api.redis.keys("*")
    stored = [shared.api.redis.dump(key) for key in keys]
    assert stored and not any(b"hush-1" in (value or b"") for value in stored)

    passed = submit(shared, "-e", "HF_TOKEN", "-e", "DB_PASSWORD=hush-5", "--", *command, environ=secrets)
    assert sorted(output_of(shared, passed.stdout).split()) == ["DB_PASSWORD=hush-5", "HF_TOKEN=hush-2"]
    assert b"HF_TOKEN" not in passed.stderr and b"WANDB_API_KEY" in passed.stderr
    number = passed.stdout.decode().strip()
    for shown in (("show", number), ("show", number, "--json"), ("ls",), ("ls", "--json")):
        done = shared.fox(*shown)
        assert "hush-5" not in done.stdout.replace("DB_PASSWORD=hush-5\n", "") and "hush-2" not in _facts(done.stdout)
    absent = shared.fox("submit", "-e", "NOT_SET_HERE", "--", "true", check=False)
    assert absent.returncode == 2 and "NOT_SET_HERE" in absent.stderr


def _facts(shown: str) -> str:
    """What show says about a job without its last lines of output, which are the job's own doing."""
    return shown.partition("\n\n")[0]


# --- output -------------------------------------------------------------------------------------------


def test_progress_without_line_ends_streams_and_shows_its_last_state(shared: Stack) -> None:
    """H1: 10 MB of carriage returns; half of it is seen before a line ends; the tail is the last state."""
    flag = shared.root / "half"
    code = f"""
import os, time
filler = "." * 84
def steps(begin, end):
    os.write(1, "".join(f"\\rstep {{n}}/99999 {{filler}}" for n in range(begin, end)).encode())
steps(0, 50000)
while not os.path.exists({str(flag)!r}): time.sleep(0.02)
steps(50000, 99999)
os.write(1, b"\\r" + b" " * 120 + b"\\r{LAST.decode()}")
"""
    number = shared.queue(sys.executable, "-S", "-c", code)
    follower = subprocess.Popen(
        [str(FOXQUEUE), "logs", "-f", str(number)], env=shared.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until(lambda: b"step 49999/" in shared.api.job(number).logs(), 10, "output before the line ends")
    assert "step 49999/99999" in shared.fox("show", str(number)).stdout.splitlines()[-1]
    flag.touch()
    shared.await_state(number, "succeeded")
    out, err = follower.communicate(timeout=20)
    assert follower.returncode == 0 and out.endswith(b"\r" + LAST)
    assert out.count(b"\r") > 500 and b"bytes of output are not kept here" in err
    assert shared.fox("show", str(number)).stdout.splitlines()[-1].strip() == LAST.decode()
    kept = shared.api.job(number).logs()
    assert kept.endswith(b"\r" + LAST) and 32 * 1024 < len(kept) < 160 * 1024
    file = next(shared.api.config.jobs_dir.glob(f"*/{number}-*/*/output.log"))
    assert file.stat().st_size > 9_000_000, "the file has all of it"

    waited = subprocess.run(
        [str(FOXQUEUE), "submit", "--wait", "--quiet", "--", sys.executable, "-S", "-c", code],
        env=shared.environ,
        cwd=shared.work,
        capture_output=True,
        timeout=30,
    )
    assert waited.returncode == 0 and waited.stdout.endswith(b"\r" + LAST)
