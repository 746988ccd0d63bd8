"""Commands that move a whole queue: export, import."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click

from foxqueue.cli import output
from foxqueue.cli.options import client, common
from foxqueue.errors import FoxqueueError, InvalidInput

SAID = 20  # sentences about single jobs


@click.command("export", short_help="Write the whole queue into a file.")
@click.argument("file", metavar="FILE")
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@common
def export(file: str, force: bool) -> int:
    """Write the whole queue (one namespace) into FILE, or to stdout where FILE is -.

    The file holds settings, groups, jobs of all states with their output and results, and what they depend on. Nothing
    in the queue is changed, and workers go on. A job that changes meanwhile is taken as it was when it was read, one
    that is submitted meanwhile is left out. For an exact picture stop it first:

    \b
        foxqueue pause --running requeue && foxqueue drain

    Jobs that run are written as they are; an import puts them back as pending. Not in the file are the audit trail and
    what jobs left in FOXQUEUE_DIR.

    FILE holds commands, environments and results, which may be secrets: it is for your user alone (mode 0600), and
    should stay so wherever you copy it.
    """
    from foxqueue import __version__
    from foxqueue.exporting import export_namespace

    fox = client()
    with _target(file, force) as stream:
        done = export_namespace(fox.broker, stream, __version__)
    _say_all(done.said)
    ran = f", {done.running:,} of them running" if done.running else ""
    where = "stdout" if file == "-" else file
    size = f"{done.size / 1024**2:.1f} MiB"
    output.say(f"namespace {fox.config.namespace!r}: {done.jobs:,} jobs{ran}, written to {where} ({size})")
    return 0


@click.command("import", short_help="Put a queue back from a file.")
@click.argument("file", metavar="FILE")
@common
def import_(file: str) -> int:
    """Put a queue back from FILE, which foxqueue export wrote: into a namespace that has never had a job.

    FILE is read twice: a cut or damaged one is refused before anything is written. While the import goes on the
    namespace is paused. Numbers, ranks, results, output, groups, dependencies, holds, due and expiry times are what
    they were; a job that ran when it was exported is pending again, at its old place, the attempt given back. What
    cannot be understood is put aside as failed (bad_payload).

    An import that was interrupted leaves the namespace paused and half full: run it again, it goes on. A namespace that
    was paused when it was exported is paused afterwards: foxqueue resume.
    """
    from foxqueue.importing import import_namespace
    from foxqueue.submission import user

    with _source(file) as stream:
        fox = client()
        done = import_namespace(fox.broker, stream, file, user())
    namespace = fox.config.namespace
    if done.before:
        output.say(f"{file} has been imported into namespace {namespace!r} before: nothing was changed")
        return 0
    _say_all(done.said)
    again = f", {done.given_back:,} of them ran and wait again" if done.given_back else ""
    output.say(f"namespace {namespace!r}: {done.jobs:,} jobs imported from {done.source[0]!r}{again}")
    output.say(f"directories of its jobs are in jobs/{done.instance} from now on; they were in jobs/{done.source[1]}")
    if done.paused:
        output.say(f"it is paused by {done.paused}: foxqueue resume starts it")
    return 0


def _say_all(sentences: list[str]) -> None:
    for sentence in sentences[:SAID]:
        output.say(sentence)
    if len(sentences) > SAID:
        output.say(f"and {len(sentences) - SAID:,} more like these")


@contextmanager
def _target(file: str, force: bool) -> Iterator[BinaryIO]:
    """Where an export goes: a file that is there when it is whole, or stdout."""
    if file == "-":
        if sys.stdout is None or sys.stdout.isatty():
            raise InvalidInput("this is no text for a terminal: give a FILE, or send stdout into a pipe or file")
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except OSError as error:  # a reader that went away too: what it has is no whole file
            output.give_up(sys.stdout)
            raise output.NotWritten(error) from error
        return
    path = Path(file)
    _check_target(path, force)
    beside = path.with_name(f".foxqueue-export.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(handle, "wb", buffering=1024 * 1024) as stream:  # noqa: PTH123 - a descriptor, not a path
            yield stream
            stream.flush()
            os.fsync(handle)
        _check_target(path, force)
        beside.replace(path)
    except OSError as error:
        raise FoxqueueError(f"{file} cannot be written: {error.strerror or error}") from error
    finally:
        beside.unlink(missing_ok=True)


def _check_target(path: Path, force: bool) -> None:
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise InvalidInput(f"{path} is no file: give the name of a file, or - for stdout")
    if path.is_symlink() or path.exists():
        if not force:
            raise InvalidInput(f"{path} is there: give another name, or --force to replace it")
    elif not path.parent.is_dir():
        raise InvalidInput(f"{path} cannot be written: there is no directory {path.parent}")


@contextmanager
def _source(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        raise InvalidInput("an import reads its file twice: give the name of a file, not -")
    path = Path(file)
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise InvalidInput(f"{file} {what}: give a file that foxqueue export wrote")
    try:
        with path.open("rb") as stream:
            yield stream
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror or error}") from error
