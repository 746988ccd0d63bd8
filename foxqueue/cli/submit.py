"""`foxqueue submit`, and following a job's output."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import Whole, client, common, json_option
from foxqueue.errors import ServerError

if TYPE_CHECKING:
    from foxqueue.client import Client, Job

NEAR_BYTES = 4096  # how far the next line may be for the output to go on there after a gap
DETACHED = 130  # what a shell shows for a command that Ctrl-C ended


@click.command(
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    short_help="Put a command into the queue.",
)
@click.option("-n", "--name", metavar="NAME", help="For people; ls --name finds it.")
@click.option(
    "-p",
    "--priority",
    metavar="P",
    help="0 to 9, or low (2), medium (5), high (8). Higher runs first, and old jobs overtake.  [default: by model "
    "type, else medium]",
)
@click.option("--gpus", type=Whole(0, 1), default=1, show_default=True, help="1 GPU, or 0: a CPU slot.")
@click.option("--gpu-memory", metavar="SIZE", help="Floor of the GPU's memory, like 8G.")
@click.option("-t", "--time-limit", metavar="TIME", help="End the job after this time, like 30m.")
@click.option("--retries", type=Whole(0, 1000), default=0, show_default=True, help="More attempts after a failed one.")
@click.option(
    "--retry-delay",
    default="10s",
    show_default=True,
    metavar="TIME",
    help="Before the first retry; doubles with each further one.",
)
@click.option("-d", "--cwd", metavar="DIR", help="Where it runs.  [default: here]")
@click.option("-e", "--env", "variables", multiple=True, metavar="K=V|NAME", help="Set, or pass on, a variable.")
@click.option("--tag", "tags", multiple=True, metavar="K=V", help="A name and a value for people.")
@click.option("--description", metavar="TEXT", help="For people.")
@click.option("--model-type", metavar="TEXT", help="What is trained: for people, and for the priority.")
@click.option(
    "--visible",
    type=click.Choice(["index", "uuid"]),
    default="index",
    show_default=True,
    help="What CUDA_VISIBLE_DEVICES carries.",
)
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
def submit(
    argv: tuple[str, ...],
    variables: tuple[str, ...],
    tags: tuple[str, ...],
    wait: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Put a command into the queue. It runs, exactly as written, on a GPU that nobody else has.

    The environment, the directory and the umask of here go along, without CUDA_*, FOXQUEUE_* and names that look
    like secrets; -e NAME passes one of those on.
    """
    from foxqueue.capture import explicit
    from foxqueue.submission import prepare

    if as_json and (wait or quiet):
        raise click.UsageError("--json goes with neither --wait nor --quiet: stdout carries one thing")
    given = explicit(variables, os.environ)
    submission = prepare(argv, {"env": given, "tags": _tags(tags), **options}, os.environ)
    fox = client()
    job = fox.put(submission)
    for warning in fox.warnings:
        output.say(warning)
    if not wait:
        return _tell_number(job, quiet, as_json)
    if not quiet:
        output.say(f"job {job.number} submitted; Ctrl-C detaches, the job goes on")
    return _run(fox, job)


def _tell_number(job: Job, quiet: bool, as_json: bool) -> int:
    """Say which job it is, on stderr where stdout takes nothing: a script must not lose an accepted job."""
    try:
        if as_json:
            output.write_json(job.to_dict())
        else:
            output.write(f"{job.number}\n" if quiet else f"job {job.number} submitted\n")
        output.flush()
    except (output.NotWritten, BrokenPipeError) as error:
        why = error.why if isinstance(error, output.NotWritten) else "nobody reads it"
        output.give_up(sys.stdout)
        output.say(f"job {job.number} was submitted, but its number could not be written: {why}")
        return 1
    if not quiet and not as_json and output.on_terminal():
        output.say(f"foxqueue logs -f {job.number} follows it, foxqueue cancel {job.number} ends it")
    return 0


def _tags(pairs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise click.BadParameter(
                f"{pair!r} is not understood: write NAME=VALUE, like model=dqn", param_hint="--tag"
            )
        found[name] = value
    return found


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
