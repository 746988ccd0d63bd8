"""Where the runs of jobs keep their files on a machine, and the mark of their processes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MARK: Final = "FOXQUEUE_RUN"
CONFIG_NAME: Final = "config.json"


def mark_of(instance: str, number: int, born: int, fence: int) -> str:
    """The value of FOXQUEUE_RUN in the environment of a run's processes, and its directory under jobs/."""
    return f"{instance}/{number}-{born}/{fence}"


def run_dir_of(jobs_dir: Path, instance: str, number: int, born: int, fence: int) -> Path:
    """Where one run keeps its output and its exit record."""
    return jobs_dir / mark_of(instance, number, born, fence)


def make_run_dir(jobs_dir: Path, instance: str, number: int, born: int, fence: int) -> Path:
    """Make the directory of one run, and the files/ beside it that all runs of the job share, for this user alone.

    Raises:
        OSError: one cannot be made; a job whose run has no directory cannot be started.
    """
    run_dir = run_dir_of(jobs_dir, instance, number, born, fence)
    for wanted in (run_dir, files_dir(run_dir)):
        for directory in (*reversed(wanted.parents), wanted):
            with suppress(FileExistsError):
                directory.mkdir(0o700)
    return run_dir


def files_dir(run_dir: Path) -> Path:
    """FOXQUEUE_DIR of a job: what a run leaves there the next run of the same job finds."""
    return run_dir.parent / "files"


def put_config(run_dir: Path, text: str) -> None:
    """Lay a job's configuration into its FOXQUEUE_DIR, in one step for every reader, over what an earlier run left.

    Raises:
        OSError: it cannot be written.
    """
    final = files_dir(run_dir) / CONFIG_NAME
    write_new(final.with_name(f".{CONFIG_NAME}.tmp"), text.encode("utf-8", "surrogateescape"), 0o600).replace(final)


def put_script(run_dir: Path, content: bytes) -> None:
    """Write down the kept copy of a job's script, for this user to execute.

    Raises:
        OSError: it cannot be written.
    """
    write_new(script_path(run_dir), content, 0o700)


def script_path(run_dir: Path) -> Path:
    """Where the kept copy of a job's script is executed."""
    return run_dir / "script"


def write_new(path: Path, content: bytes, mode: int) -> Path:
    """Write a file that is ours alone; what a run before left under the name goes, a link is not followed."""
    path.unlink(missing_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:  # noqa: PTH123
            file.write(content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return path
