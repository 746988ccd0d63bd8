"""`foxqueue submit`, and following a job's output."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import click

from foxqueue import foxlines
from foxqueue.cli import output
from foxqueue.cli.options import client, common, json_option
from foxqueue.cli.pause import tell_waiting
from foxqueue.cli.scripted import Scripted, placed, words
from foxqueue.cli.submit_options import asked, job_options
from foxqueue.errors import QueueFull, ServerError

if TYPE_CHECKING:
    from foxqueue.client import Client, Job
    from foxqueue.submission import Submission

NEAR_BYTES = 4096  # how far the next line may be for the output to go on there after a gap
DETACHED = 130  # what a shell shows for a command that Ctrl-C ended


@click.command(
    cls=Scripted,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    short_help="Put a command into the queue.",
)
@job_options
@click.option(
    "--script", "keep", is_flag=True, help="CMD is a script: a copy of it goes along, and what runs is the copy."
)
@click.option("--block", is_flag=True, help="Where the queue is full, wait for room.")
@click.option(
    "-w",
    "--wait",
    "wait",
    is_flag=True,
    help="Stream the output, of a fast writer the last 64 KiB, and exit with the job's own code.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print the number alone.")
@json_option
@common
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD [ARG]...")
@click.pass_context
def submit(
    context: click.Context,
    /,
    argv: tuple[str, ...],
    keep: bool,
    block: bool,
    wait: bool,
    quiet: bool,
    as_json: bool,
    **_: Any,
) -> int:
    """Put a command into the queue. It runs, exactly as written, on a GPU that nobody else has.

    The environment, the directory and the umask of here go along, without CUDA_*, FOXQUEUE_* and names that look
    like secrets; -e NAME passes one of those on.

    A script may hold options itself: lines like #FOX --gpu-memory 8G among the comments at its beginning. Those of
    the command line win.
    """
    if as_json and (wait or quiet):
        raise click.UsageError("--json goes with neither --wait nor --quiet: stdout carries one thing")
    clients = cache(client)  # the server is asked for once, and after the options were checked, if that can be
    submission = _submission(context, argv, keep, lambda: clients().last().number)
    fox = clients()
    job = _put(fox, submission, block)
    for warning in fox.warnings:
        output.say(warning)
    if not wait:
        return _tell_number(job, quiet, as_json)
    if not quiet:
        output.say(f"{_what_came(job)}; Ctrl-C detaches, the job goes on")
    if submission.wishes.hold and job.is_new:
        output.say(f"job {job.number} is held: foxqueue unhold {job.number} lets it go")
    tell_waiting(fox)
    return _run(fox, job)


def _submission(context: click.Context, argv: tuple[str, ...], keep: bool, last: Callable[[], int]) -> Submission:
    """The request, checked.

    Args:
        context: of the command.
        argv: the words of the command.
        keep: whether the script's content goes along.
        last: number of this user's newest job.
    """
    from foxqueue.submission import prepare

    with placed(context, last):
        options = asked(context, last)
        command = words(context, argv, elsewhere="cwd" in options, copied=keep)
        return prepare(command, options, os.environ, foxlines.kept(command[0]) if keep and command else None)


def _put(fox: Client, submission: Submission, block: bool) -> Job:
    """Enqueue it; where the queue is full, once there is room."""
    if block:
        try:
            return fox.put(submission)
        except QueueFull as error:
            output.say(f"{error.what}: waiting for room; Ctrl-C gives up")
    return fox.put(submission, block=block)


def _what_came(job: Job) -> str:
    return f"job {job.number} submitted" if job.is_new else f"job {job.number} has this unique key already"


def _tell_number(job: Job, quiet: bool, as_json: bool) -> int:
    """Say which job it is."""

    def put() -> None:
        if as_json:
            output.write_json(job.to_dict())
        else:
            output.write(f"{job.number}\n" if quiet else f"{_what_came(job)}\n")

    if not output.hand_over(put, f"job {job.number} was submitted, but its number"):
        return 1
    if not quiet and not as_json and output.on_terminal():
        output.say(f"foxqueue logs -f {job.number} follows it, foxqueue cancel {job.number} ends it")
    return 0


def _run(fox: Client, job: Job) -> int:
    """Stream the job's output and answer its exit code."""
    try:
        stream(fox, job)
    except KeyboardInterrupt:
        output.say(
            f"detached: job {job.number} goes on; foxqueue logs -f {job.number} follows it, "
            f"foxqueue cancel {job.number} ends it"
        )
        return DETACHED
    except output.NotWritten as error:
        output.give_up(sys.stdout)
        output.say(f"{error}; job {job.number} goes on, foxqueue logs -f {job.number} follows it")
        return error.exit_code
    status = job.view.exit_status()
    if status:
        output.say(how_it_ended(job))
    return status


def how_it_ended(job: Job) -> str:
    """One sentence: ``job 7 failed (exit_code): exited with code 3``."""
    reason = f" ({job.reason})" if job.reason else ""
    detail = f": {job.detail}" if job.detail else ""
    return f"job {job.number} {job.state}{reason}{detail}"


def stream(fox: Client, job: Job) -> None:
    """Write output as it comes until the job has ended; gaps and new attempts are told on stderr."""
    fence, expected, told = None, 0, False
    for piece in fox.pieces(job):
        data, offset = piece.data, piece.offset
        if piece.fence != fence:
            if fence is not None:
                output.say(f"job {job.number} runs again")
            fence, expected, told = piece.fence, 0, False
        if offset > expected:
            cut = _line_start(data)
            data, offset = data[cut:], offset + cut
            where = "" if told else f"; {whole_output(fox, job, piece.fence)}"
            output.say(f"{offset - expected:,} bytes of output are not kept here{where}")
            told = True
        expected = offset + len(data)
        output.write_bytes(data)


def _line_start(data: bytes) -> int:
    """Where to go on after a gap: at the next line if one begins soon, else at once."""
    newline = data.find(b"\n", 0, NEAR_BYTES)
    return newline + 1 if 0 <= newline < len(data) - 1 else 0


def whole_output(fox: Client, job: Job, fence: int) -> str:
    """Where a run's output lies. Only its own machine knows its home and its machine id."""
    host = job.host if job.host and job.fence == str(fence) else "its worker's machine"
    try:
        instance = fox.broker.settings().instance
    except ServerError:
        instance = "<instance>"
    run = f"{instance}/{job.number}-{job.born}/{fence}"
    kept = "what is kept of it (the first 1 MiB and the last 64 MiB)"
    return f"{kept} is on {host}: <home>/<machine-id>/jobs/{run}/output.log"
