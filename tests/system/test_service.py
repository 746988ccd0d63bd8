"""`foxqueue service` with programs in place of systemctl and loginctl, which write down what they are told."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import subprocess
from pathlib import Path

import pytest
from stack import FOXQUEUE

from foxqueue import service
from foxqueue.config import default_home, load_config
from foxqueue.errors import AlreadyRunning, FoxqueueError, InvalidInput
from foxqueue.service import MARK, NoSystemd, Place, compose, config_of, install, system_place, uninstall, user_place

STUB = """#!/bin/sh
cd {place}
echo "$(basename $0) $*" >> calls
for word; do
    [ -e "fail-$word" ] && {{ echo "refused: $word" >&2; exit 1; }}
    case "$word" in
        is-system-running) cat state; exit 0;;
        is-active) [ -e active ] && echo active || echo inactive; exit 0;;
        enable) touch active;;
        disable) rm -f active;;
    esac
done
exit 0
"""


class Manager:
    """What stands in for systemd."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "bin").mkdir(parents=True)
        self.order("state", "running")
        for name in ("systemctl", "loginctl"):
            program = directory / "bin" / name
            program.write_text(STUB.format(place=shlex.quote(str(directory))))
            program.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FOXQUEUE_", "CUDA_"))}
        self.environ = kept | {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "HOME": str(directory),
            "XDG_CONFIG_HOME": str(directory / "conf ig"),
            "FOXQUEUE_HOME": str(directory / "home"),
        }
        self.environ.pop("SUDO_USER", None)
        self.unit = directory / "conf ig" / "systemd" / "user" / "foxqueue.service"

    def order(self, name: str, text: str = "") -> None:
        (self.directory / name).write_text(text)

    def calls(self) -> list[str]:
        """What was asked since the last time, but for questions."""
        file = self.directory / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if " is-" not in line]

    def fox(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [FOXQUEUE, "service", *words],
            env=self.environ | environ,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def manager(tmp_path: Path) -> Manager:
    return Manager(tmp_path)


def lines(text: str, name: str) -> list[str]:
    return [line.partition("=")[2] for line in text.splitlines() if line.startswith(name + "=")]


# --- the commands -------------------------------------------------------------------------------------


def test_install_again_replace_show_and_uninstall(manager: Manager) -> None:
    me = pwd.getpwuid(os.geteuid()).pw_name
    options = ("--simulate", "2x24G", "--bind", "10.0.0.1:6390")
    asked = [f"loginctl enable-linger {me}", "systemctl --user enable --now foxqueue.service"]
    done = manager.fox("install", "--user", "--", *options)
    assert done.returncode == 0, done.stderr
    assert "written, enabled and started" in done.stderr
    assert manager.calls() == ["systemctl --user daemon-reload", *asked]
    text = manager.unit.read_text()
    assert stat.S_IMODE(manager.unit.stat().st_mode) == 0o644
    assert lines(text, "ExecStart") == [f"{FOXQUEUE} up {' '.join(options)}"]
    assert lines(text, "ExecStop") == [f"{FOXQUEUE} down"] and lines(text, "WantedBy") == ["default.target"]
    assert f"FOXQUEUE_HOME={manager.directory / 'home'}" in text and not lines(text, "User")
    assert manager.fox("show", "--user").stdout == text

    done = manager.fox("install", "--user", "--", *options)
    assert done.returncode == 0 and "is there already" in done.stderr and manager.calls() == asked
    done = manager.fox("install", "--user", "--", "--cpu", "2")
    assert done.returncode == 1 and "--force" in done.stderr
    assert manager.calls() == [] and manager.unit.read_text() == text
    done = manager.fox("install", "--user", "--force", "--", "--cpu", "2")
    assert done.returncode == 0 and "systemctl --user restart foxqueue" in done.stderr
    assert lines(manager.unit.read_text(), "ExecStart") == [f"{FOXQUEUE} up --cpu 2"]
    assert manager.calls() == ["systemctl --user daemon-reload", *asked]

    done = manager.fox("uninstall", "--user")
    assert done.returncode == 0 and not manager.unit.exists()
    assert manager.calls() == ["systemctl --user disable --now foxqueue.service", "systemctl --user daemon-reload"]
    assert "no service is installed" in manager.fox("uninstall", "--user").stderr
    assert manager.fox("show", "--user").returncode == 1 and manager.calls() == []


def test_dry_run_does_nothing(manager: Manager) -> None:
    done = manager.fox("install", "--user", "--dry-run", "--", "--cpu", "1")
    assert done.returncode == 0 and done.stdout.startswith(MARK)
    assert not manager.unit.exists() and manager.calls() == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--", "--cpu", "x"), "not a whole number"),
        (("--", "--nonsense"), "No such option"),
        (("--", "--detach"), "in the background by itself"),
        (("--", "--url", "redis://:s3cret@h:1/0"), "before the --"),
        (("--", "--group", "no-such-group"), "there is no such group"),
        (("--", "--bind", "nonsense"), "is not understood"),
        (("--run-as", "root"), "without --user"),
        (("--url", "redis://h:1/0", "--", "--bind", "h:1"), "another one is configured"),
        (("--home", "/a\tb"), "cannot hold"),
    ],
)
def test_what_up_would_refuse_is_refused_at_once(manager: Manager, words: tuple[str, ...], text: str) -> None:
    done = manager.fox("install", "--user", *words)
    assert done.returncode == 2 and text in done.stderr and "Traceback" not in done.stderr
    assert not manager.unit.exists() and manager.calls() == []


@pytest.mark.parametrize("state", ["offline", "", "Failed to connect to bus: No medium found"])
def test_without_systemd_it_says_what_to_do_instead(manager: Manager, state: str) -> None:
    manager.order("state", state)
    done = manager.fox("install", "--user")
    assert done.returncode == 1 and "up --detach, or foxqueue up under tmux or honcho" in done.stderr
    assert not manager.unit.exists() and manager.calls() == []


def test_without_systemctl_too(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(manager.directory))
    place = Place(manager.directory / "units", False, "root")
    with pytest.raises(NoSystemd, match="no systemctl on PATH"):
        install(place, service.Unit("x", ""), print)


def test_refused_linger_is_told_with_its_cure(manager: Manager) -> None:
    manager.order("fail-enable-linger")
    done = manager.fox("install", "--user")
    assert done.returncode == 0 and "sudo loginctl enable-linger" in done.stderr
    assert "end when you log out" in done.stderr and "refused: enable-linger" in done.stderr
    assert "systemctl --user enable --now foxqueue.service" in manager.calls()


def test_refusals_of_systemd_are_passed_on(manager: Manager) -> None:
    manager.order("fail-enable")
    done = manager.fox("install", "--user")
    assert done.returncode == 1 and "refused: enable" in done.stderr and "Traceback" not in done.stderr


def test_units_of_others_are_left_alone(manager: Manager) -> None:
    manager.unit.parent.mkdir(parents=True)
    manager.unit.write_text("[Service]\nExecStart=/usr/bin/theirs\n")
    for verb in ("install", "uninstall"):
        done = manager.fox(verb, "--user")
        assert done.returncode == 1 and "was not written by foxqueue" in done.stderr
    assert "theirs" in manager.unit.read_text() and manager.calls() == []


# --- passwords ----------------------------------------------------------------------------------------


def test_passwords_lie_in_a_file_for_nobody_else(manager: Manager) -> None:
    file = manager.unit.with_suffix(".env")
    url = 'redis://:s3cr%24"t@h:1/0'
    done = manager.fox("install", "--user", FOXQUEUE_URL=url)
    assert done.returncode == 0, done.stderr
    assert "s3cr" not in manager.unit.read_text() + done.stderr
    assert lines(manager.unit.read_text(), "EnvironmentFile") == [str(file)]
    assert file.read_text() == 'FOXQUEUE_URL="redis://:s3cr%24\\"t@h:1/0"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    done = manager.fox("install", "--user", "--force", FOXQUEUE_URL="redis://h:1/0", FOXQUEUE_PASSWORD="s3cret$`\\")
    assert (
        file.read_text() == 'FOXQUEUE_PASSWORD="s3cret\\$\\`\\\\"\n'
        and "Environment=FOXQUEUE_URL=redis://h:1/0" in (manager.unit.read_text())
    )
    manager.order("pass", "s3cret")
    environ = {"FOXQUEUE_URL": "redis://h:1/0", "FOXQUEUE_PASSWORD_FILE": "pass"}
    assert manager.fox("install", "--user", **environ).returncode == 1, "a password that changed is a change"
    assert manager.fox("install", "--user", "--force", **environ).returncode == 0
    assert f"FOXQUEUE_PASSWORD_FILE={manager.directory / 'pass'}" in manager.unit.read_text()
    assert not file.exists() and "s3cret" not in manager.unit.read_text()
    assert manager.fox("uninstall", "--user").returncode == 0


# --- of the machine -----------------------------------------------------------------------------------


def test_the_machines_service_runs_as_a_user_and_not_as_root_by_accident(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.os, "geteuid", lambda: 0)
    with pytest.raises(InvalidInput, match="--run-as NAME"):
        system_place(None, {})
    with pytest.raises(InvalidInput, match="--run-as NAME"):
        system_place(None, {"SUDO_USER": "root"})
    with pytest.raises(InvalidInput, match="no such user"):
        system_place("no-such-user", {})
    with pytest.raises(InvalidInput, match="without sudo"):
        user_place({"SUDO_USER": "daemon"})
    assert system_place("root", {}).run_as == "root"
    place = system_place(None, {"SUDO_USER": "daemon"}, manager.directory / "units")
    config = config_of(place, load_config(environ={"HOME": "/root"}, cwd=manager.directory))
    assert config.home == default_home({"HOME": pwd.getpwnam("daemon").pw_dir})
    given = load_config(home="/srv/fq", environ={"HOME": "/root"}, cwd=manager.directory)
    assert config_of(place, given).home == Path("/srv/fq")
    text = compose(place, config, (), {}, FOXQUEUE).text
    assert lines(text, "User") == ["daemon"] and lines(text, "WantedBy") == ["multi-user.target"]
    assert "network-online.target" in text
    monkeypatch.setattr(service.os, "geteuid", lambda: 1000)
    with pytest.raises(InvalidInput, match=r"needs root: sudo foxqueue service install.*--user"):
        system_place("daemon", {})


def test_the_machines_service_is_asked_of_the_machines_manager(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", manager.environ["PATH"])
    place = Place(manager.directory / "units", False, "daemon")
    unit = compose(place, load_config(home="/srv/fq", environ={"HOME": "/"}, cwd=Path("/")), (), {}, FOXQUEUE)
    said: list[str] = []
    with pytest.raises(AlreadyRunning, match="foxqueue down first"):
        install(place, unit, said.append, taken=True)
    assert not place.unit.exists()
    install(place, unit, said.append)
    assert manager.calls() == ["systemctl daemon-reload", "systemctl enable --now foxqueue.service"]
    install(place, unit, said.append, taken=True)  # by the service itself
    uninstall(place, said.append)
    assert not list(place.units.iterdir())


# --- the unit's words ---------------------------------------------------------------------------------


def test_nothing_in_the_unit_is_taken_for_something_else(tmp_path: Path) -> None:
    place = Place(tmp_path, False, "daemon")
    config = load_config(home='/h "%h" $HOME\\x', environ={"HOME": "/"}, cwd=Path("/"))
    text = compose(place, config, ("--lease-ttl", "$X"), {"PATH": "/a b:/c"}, Path("/o p/foxqueue")).text
    assert r'Environment="FOXQUEUE_HOME=/h \"%%h\" $HOME\\x"' in text and 'Environment="PATH=/a b:/c"' in text
    assert 'ExecStart="/o p/foxqueue" up --lease-ttl "$$X"' in text and 'ExecStop="/o p/foxqueue" down' in text
    assert 'Description=foxqueue: workers and server of /h "%%h" $HOME\\x' in text


def test_a_crash_of_up_and_a_job_without_memory_leave_the_rest_alone(tmp_path: Path) -> None:
    """And a stop waits longer than `down` does."""
    from workers.supervisor import DOWN_WAITS_S

    place = Place(tmp_path, True, "daemon")
    text = compose(place, load_config(home="/h", environ={"HOME": "/"}, cwd=Path("/")), (), {}, FOXQUEUE).text
    wanted = {"KillMode": "process", "OOMPolicy": "continue", "Restart": "on-failure", "TasksMax": "infinity"}
    assert {name: lines(text, name) for name in wanted} == {name: [value] for name, value in wanted.items()}
    assert float(lines(text, "TimeoutStopSec")[0]) > DOWN_WAITS_S + 90


def test_the_program_is_found_or_missed(tmp_path: Path) -> None:
    assert service.find_program(str(FOXQUEUE), {}) == FOXQUEUE
    assert service.find_program("-c", {}) == FOXQUEUE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.sys, "executable", str(tmp_path / "python"))
        with pytest.raises(FoxqueueError, match="is not found"):
            service.find_program("-c", {"PATH": ""})
