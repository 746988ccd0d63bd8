"""`foxqueue submit`, and following a job's output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import client, common, json_option

if TYPE_CHECKING:
    from foxqueue.client import Client, Job

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
    default="medium",
    show_default=True,
    metavar="P",
    help="0 to 9, or low (2), medium (5), high (8). Higher runs first, and old jobs overtake.",
)
@click.option("--gpus", type=click.IntRange(0, 1), default=1, show_default=True, help="1 GPU, or 0: a CPU slot.")
@click.option("--gpu-memory", metavar="SIZE", help="Floor of the GPU's memory, like 8G.")
@click.option("-t", "--time-limit", metavar="TIME", help="End the job after this time, like 30m.")
@click.option(
    "--retries", type=click.IntRange(0, 1000), default=0, show_default=True, help="More attempts after a failed one."
)
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
@click.option("--model-type", metavar="TEXT", help="For people: what is trained.")
@click.option(
    "--visible",
    type=click.Choice(["index", "uuid"]),
    default="index",
    show_default=True,
    help="What CUDA_VISIBLE_DEVICES carries.",
)
@click.option("-w", "--wait", "wait", is_flag=True, help="Stream the output and exit with the job's own code.")
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
    from foxqueue.submission import Request, prepare

    if as_json and (wait or quiet):
        raise click.UsageError("--json goes with neither --wait nor --quiet: stdout carries one thing")
    given = explicit(variables, os.environ)
    submission = prepare(Request(argv, env=given, tags=_tags(tags), **options), os.environ)
    fox = client()
    job = fox.enqueue(submission)
    for warning in fox.warnings:
        output.say(warning)
    if as_json:
        output.write_json(job.to_dict())
    elif quiet and not wait:
        output.write(f"{job.number}\n")
    elif not wait:
        output.write(f"job {job.number} submitted\n")
        if output.on_terminal():
            output.say(f"foxqueue logs -f {job.number} follows it, foxqueue cancel {job.number} ends it")
    if not wait:
        return 0
    if not quiet:
        output.say(f"job {job.number} submitted; Ctrl-C detaches, the job goes on")
    return _run(fox, job)


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
    fence, expected = None, 0
    for piece in fox.pieces(job):
        if piece.fence != fence:
            if fence is not None:
                output.say(f"job {job.number} runs again")
            fence, expected = piece.fence, 0
        if piece.offset > expected:
            output.say(f"{piece.offset - expected:,} bytes of output are not kept here")
        expected = piece.offset + len(piece.data)
        output.write_bytes(piece.data)
