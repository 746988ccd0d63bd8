"""Who the processes on a GPU are: real ones, named by user and command, and programs that do not count."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nvml_stub import State
from stub_machine import Machine, held

pytestmark = pytest.mark.nvml

GPU = ("gpu 0 name NVIDIA H200", "gpu 0 mem_total_mib 10000", "gpu 0 mem_reserved_mib 600")
ME = pwd.getpwuid(os.getuid()).pw_name
GONE = 4_200_010  # above the largest number that a kernel gives

Holder = Callable[..., int]


@pytest.fixture
def probed(nvml_state: State, machine: Machine) -> Machine:
    nvml_state.write(*GPU)
    machine.probe()
    return machine


@pytest.fixture
def waits(nvml_library: Path, tmp_path: Path) -> Path:
    """A program that waits, whatever words it is given. Its name is waits."""
    source = tmp_path / "waits.c"
    source.write_text("#include <unistd.h>\nint main(void) { for (;;) pause(); }\n")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or "clang"
    subprocess.run([*compiler.split(), "-o", str(tmp_path / "waits"), str(source)], check=True)
    return tmp_path / "waits"


@pytest.fixture
def holder(nvml_state: State, waits: Path) -> Iterator[Holder]:
    """Start a program that holds memory of the GPU, and give its number."""
    started: list[subprocess.Popen[bytes]] = []

    def start(mib: int, *argv: str) -> int:
        started.append(subprocess.Popen(argv, executable=waits))
        nvml_state.hold(0, mib, started[-1].pid)
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_stranger_is_told_with_user_and_command(nvml_state: State, probed: Machine, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import signal; print('here', flush=True); signal.pause()")
    command = ["python3", str(script), "--password", "hunter2"]
    job = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert job.stdout is not None and job.stdout.readline()
        nvml_state.hold(0, 1200, job.pid)
        seen = probed.look()
        assert seen["strangers"] == [{"pid": job.pid, "mib": 1200, "user": ME, "command": "python3 train.py"}]
        assert seen["detail"] == (
            f"1.18G held by processes that are not ours: pid {job.pid} ({ME}, python3 train.py, 1.18G)"
        )
    finally:
        job.kill()
        job.communicate()


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (("/usr/bin/trainer", "--token", "secret"), "trainer"),
        (("python3.11", "-m", "torch.distributed", "x"), "python3.11 -m torch.distributed"),
        (("python", "-c", "secret"), "python"),
        (("python",), "python"),
        (("ev\x1b[2Jil",), "ev?[2Jil"),
        (("x" * 300,), "x" * 60),
        (("",), "waits"),  # a process may have no words: then its name
    ],
)
def test_of_the_command_only_the_program_is_told(
    probed: Machine, holder: Holder, argv: tuple[str, ...], command: str
) -> None:
    holder(300, *argv)
    assert [one["command"] for one in probed.look()["strangers"]] == [command]


def test_one_that_is_gone_or_hidden_is_told_by_its_number(nvml_state: State, probed: Machine) -> None:
    nvml_state.write(*GPU, f"gpu 0 proc {GONE} 1000")
    seen = probed.look()
    assert seen["strangers"] == [{"pid": GONE, "mib": 1000, "user": "", "command": ""}]
    assert seen["detail"].endswith(f"pid {GONE} (1000M)")


@pytest.mark.parametrize("name", ["Xorg", "waits"])
def test_programs_to_be_ignored_do_not_count(probed: Machine, holder: Holder, name: str) -> None:
    """By the name that it was started under, or that of its file."""
    pid = holder(3000, "/usr/lib/xorg/Xorg")
    assert probed.look()["state"] == "occupied"
    seen = probed.look(ignore=("gnome-shell", name))
    assert (seen["state"], seen["strangers"]) == ("free", [])
    assert [(one["pid"], one["mib"], one["command"]) for one in seen["ignored"]] == [(pid, 3000, "Xorg")]
    assert seen["memory_used_mib"] == 3000 and seen["memory_free_mib"] == 6400
    assert probed.look(ignore=("xorg", "Xor"))["state"] == "occupied", "names are whole, and cased"


def test_others_count_beside_an_ignored_program(nvml_state: State, probed: Machine, holder: Holder) -> None:
    holder(3000, "Xorg")
    other = holder(300, "trainer")
    seen = probed.look(ignore=("Xorg",))
    assert (seen["state"], held(seen)) == ("occupied", [[other, 300]])
    assert probed.look(other, ignore=("Xorg",))["state"] == "free"
    # and what hides behind it: 5000 less the 600 of the driver and the 3300 of those two
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 5000")
    assert "1.08G held" in probed.look(other, ignore=("Xorg",))["detail"]


def test_an_ignored_program_without_a_figure_is_all_there_is(
    nvml_state: State, probed: Machine, holder: Holder
) -> None:
    """How much a desktop uses is often not told: where nobody else is there, what is in use is its own."""
    pid = holder(0, "Xorg")
    nvml_state.write(*GPU, "gpu 0 mem_used_mib 1600")
    assert held(probed.look()) == [[pid, None]] and probed.look()["state"] == "occupied"
    assert probed.look(ignore=("Xorg",))["state"] == "free"


def test_a_thread_is_its_process(nvml_state: State, probed: Machine) -> None:
    """Drivers that translate numbers for containers give that of the thread that computes."""
    probed.child.run(
        "import threading\nknown, stop = [], threading.Event()\n"
        "def work(): known.append(threading.get_native_id()); stop.wait()\n"
        "threading.Thread(target=work, daemon=True).start()\nwhile not known: pass"
    )
    (thread,), process = probed.child.ask("known"), probed.child.process.pid
    nvml_state.write(*GPU, f"gpu 0 proc {thread} 3000")
    assert probed.look()["state"] == "occupied"
    seen = probed.look(process)
    assert (seen["state"], seen["ours"]) == ("free", [[process, 3000]])


def test_a_number_that_was_given_out_again_is_looked_up_again(
    nvml_state: State, probed: Machine, holder: Holder
) -> None:
    """While a process stays on the GPU it is looked up once."""
    pid = holder(300, "trainer")
    assert [one["command"] for one in probed.look()["strangers"]] == ["trainer"]
    probed.child.run("strangers._look_up = lambda pid: strangers.Who(pid, 'ann', 'other')")
    assert [one["command"] for one in probed.look()["strangers"]] == ["trainer"]
    (nvml_state.procs / f"0.{pid}").unlink()
    assert probed.look()["strangers"] == []
    nvml_state.hold(0, 300, pid)
    assert [one["command"] for one in probed.look()["strangers"]] == ["other"]


def test_ours_are_asked_one_by_one(nvml_state: State, probed: Machine) -> None:
    """What is ours may be anything that can be asked whether a number is in it."""
    nvml_state.write(*GPU, f"gpu 0 proc {GONE} 1000")
    probed.child.run("class Ours:\n    def __contains__(self, pid): return pid == " + str(GONE))
    assert probed.child.ask("probe.look(Ours()).state") == "free"
