"""What a job's record says of the repository in which it was submitted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from foxqueue import repository
from foxqueue.codec import unpack
from foxqueue.repository import Repositories, in_repository, look, read
from foxqueue.submission import Submitter

COMMIT = "ab" * 20


def git(where: Path, *words: str) -> str:
    config = ["-c", "user.name=ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *config, *words], cwd=where, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one commit on the branch ``work``, and a directory in it."""
    made = tmp_path / "project"
    (made / "deep").mkdir(parents=True)
    git(made, "init", "--quiet", "--initial-branch", "work")
    (made / "train.py").write_text("1\n")
    git(made, "add", ".")
    git(made, "commit", "--quiet", "-m", "first")
    return made


def test_commit_branch_and_changes_are_told(project: Path) -> None:
    commit = git(project, "rev-parse", "HEAD")
    assert look(str(project / "deep")) == {"commit": commit, "branch": "work", "dirty": False}
    (project / "new.py").touch()  # git does not know it
    assert look(str(project)) == {"commit": commit, "branch": "work", "dirty": False}
    (project / "train.py").write_text("2\n")
    git(project, "checkout", "--quiet", "--detach")
    assert look(str(project)) == {"commit": commit, "branch": None, "dirty": True}


def test_a_worktree_has_a_branch_of_its_own(project: Path, tmp_path: Path) -> None:
    git(project, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "tree"))
    assert (tmp_path / "tree/.git").is_file()
    found = Repositories().state(str(tmp_path / "tree"))
    assert found == {"commit": git(project, "rev-parse", "HEAD"), "branch": "other", "dirty": False}


def test_a_hook_that_submits_elsewhere_does_not_name_its_own_repository(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(project / ".git"))
    assert look(str(other)) is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (b"# branch.oid (initial)\n# branch.head work\n", None),
        (b"", None),
        (b"# nonsense\n#\n", None),
        (f"# branch.oid {COMMIT}\n".encode(), {"commit": COMMIT, "branch": None, "dirty": False}),
        (
            f"# branch.oid {COMMIT}\n# branch.head a\xff b\n# branch.ab +1 -0\nu UU x\n".encode("latin-1"),
            {"commit": COMMIT, "branch": "a� b", "dirty": True},
        ),
    ],
)
def test_what_git_says_is_read_tolerantly(status: bytes, expected: object) -> None:
    assert read(status) == expected


def program(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another git."""
    (directory / "bin").mkdir()
    (directory / "bin/git").write_text(f"#!/bin/sh\n{script}\n")
    (directory / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory / 'bin'}:{os.environ['PATH']}")


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60", "echo; echo '# branch.oid'", "kill -9 $$"])
def test_a_git_that_fails_is_nobodys_concern(project: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program(project, script, monkeypatch)
    monkeypatch.setattr(repository, "LIMIT_S", 0.5)
    assert Repositories().state(str(project)) is None


def test_without_git_nothing_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert look(str(project)) is None


def test_git_is_not_asked_where_there_is_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "look", lambda _: pytest.fail("git was asked"))
    assert not in_repository(str(tmp_path))
    assert Repositories().state(str(tmp_path)) is None
    assert Repositories().state("/") is None


def test_a_loop_of_submissions_asks_git_once_and_sees_a_change_later(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    clock = [1000.0]

    def looking(directory: str) -> object:
        asked.append(directory)
        return look(directory)

    monkeypatch.setattr(repository, "look", looking)
    monkeypatch.setattr(repository.time, "monotonic", lambda: clock[0])
    submitter = Submitter({})
    specs = [submitter.command(["true"], {"cwd": project, "name": str(at)}).spec for at in range(100)]
    assert asked == [str(project)]
    assert {unpack(spec)["git"]["dirty"] for spec in specs} == {False}
    (project / "train.py").write_text("2\n")
    clock[0] += repository.KEPT_S
    assert unpack(submitter.command(["true"], {"cwd": project}).spec)["git"]["dirty"] is True
    assert len(asked) == 2


def test_memory_has_a_bound(tmp_path: Path) -> None:
    known = Repositories()
    for at in range(3 * repository.REMEMBERED):
        known.state(f"{tmp_path}/{at}")
    assert len(known._known) <= repository.REMEMBERED
