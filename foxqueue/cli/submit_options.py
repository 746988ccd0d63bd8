"""The options of a job, for every command that enqueues some: the decorator ``job_options``, and :func:`asked`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from foxqueue.cli.options import Whole

F = TypeVar("F", bound=Callable[..., Any])

_PARENTS = ("after", "after_any", "after_failed")
_PLAIN = (
    "name",
    "priority",
    "gpus",
    "gpu_memory",
    "no_gpu_ok",
    "time_limit",
    "retries",
    "retry_delay",
    "retry_on",
    "retry_cap",
    "cwd",
    "description",
    "model_type",
    "visible",
    "delay",
    "at",
    "expires",
    "unique",
    "if_exists",
    "group",
    "hold",
    "notify",
)

_OPTIONS = (
    click.option("-n", "--name", metavar="NAME", help="For people; ls --name finds it."),
    click.option(
        "-p",
        "--priority",
        metavar="P",
        help="0 to 9, or low (2), medium (5), high (8). Higher runs first; a level is worth `aging` of waiting "
        "(foxqueue config get aging).  [default: by model type, else medium]",
    ),
    click.option("--gpus", type=Whole(0, 1), default=1, show_default=True, help="1 GPU, or 0: a CPU slot."),
    click.option("--gpu-memory", metavar="SIZE", help="Floor of the GPU's memory, like 8G."),
    click.option("--no-gpu-ok", is_flag=True, help="Take a CPU slot as long as no GPU is served."),
    click.option("-t", "--time-limit", metavar="TIME", help="End the job after this time, like 30m."),
    click.option(
        "--retries", type=Whole(0, 1000), default=0, show_default=True, help="More attempts after a failed one."
    ),
    click.option(
        "--retry-delay",
        default="10s",
        show_default=True,
        metavar="TIME",
        help="Before the first retry; doubles with each further one, and up to a quarter more by chance.",
    ),
    click.option(
        "--retry-cap", default="1h", show_default=True, metavar="TIME", help="What doubling does not go beyond."
    ),
    click.option(
        "--retry-on",
        metavar="WHY,…",
        help="Retry only after these exit codes and reasons, like 3,signal,timeout; after 75, which means later, it "
        "always runs again.  [default: all failures of the command]",
    ),
    click.option("-d", "--cwd", metavar="DIR", help="Where it runs.  [default: here]"),
    click.option("-e", "--env", "variables", multiple=True, metavar="K=V|NAME", help="Set, or pass on, a variable."),
    click.option("--tag", "tags", multiple=True, metavar="K=V", help="A name and a value for people."),
    click.option("--description", metavar="TEXT", help="For people."),
    click.option("--model-type", metavar="TEXT", help="What is trained: for people, and for the priority."),
    click.option(
        "--visible",
        type=click.Choice(["index", "uuid"]),
        default="index",
        show_default=True,
        help="What CUDA_VISIBLE_DEVICES carries.",
    ),
    click.option(
        "--config", "config_file", metavar="FILE", help=".json or .toml; the job finds it as $FOXQUEUE_DIR/config.json."
    ),
    click.option("--after", multiple=True, metavar="JOB,…", help="Start when these have succeeded: 41,42, 5-8, last."),
    click.option("--after-any", multiple=True, metavar="JOB,…", help="When these have succeeded or failed."),
    click.option("--after-failed", multiple=True, metavar="JOB,…", help="When these have failed."),
    click.option("--delay", metavar="TIME", help="Start in so long at the earliest, like 10m."),
    click.option(
        "--at", metavar="WHEN", help="Start then at the earliest: 2026-12-01T08:00:00+01:00, or local 2026-12-01 08:00."
    ),
    click.option("--expires", metavar="TIME", help="Cancel it if it has not started in so long, like 6h; off: never."),
    click.option("--hold", is_flag=True, help="Do not start it before foxqueue unhold."),
    click.option("--unique", metavar="KEY", help="Only one unfinished job may have this key."),
    click.option(
        "--if-exists",
        type=click.Choice(["refuse", "return", "replace"]),
        help="What to do where one has it: refuse this job, return that one, or cancel that one.  [default: refuse]",
    ),
    click.option("--group", metavar="NAME", help="Of the group of this name."),
    click.option("--notify", metavar="CMD|URL", help="Tell of its end: run a command, or POST to a URL."),
)


def job_options(command: F) -> F:
    """Add the options of a job; :func:`asked` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def asked(context: click.Context, last: Callable[[], int]) -> dict[str, Any]:
    """What was given by the options of ``job_options``, as :class:`foxqueue.wishes.Options` takes it; the rest has its
    default there.

    Args:
        context: of the command; its ``params`` are read.
        last: number of this user's newest job, asked for only where ``last`` is named as a parent.

    Raises:
        InvalidInput, click.BadParameter: one is malformed. Most are checked only when a submission is made.
    """
    from foxqueue.capture import explicit

    def given(name: str) -> Any:
        return None if context.get_parameter_source(name) is ParameterSource.DEFAULT else context.params[name]

    found = {name: given(name) for name in _PLAIN}
    found |= {name: numbers(texts, last) for name in _PARENTS if (texts := given(name))}
    if variables := given("variables"):
        found["env"] = explicit(variables, os.environ)
    if pairs := given("tags"):
        found["tags"] = _tags(pairs)
    if (path := given("config_file")) is not None:
        from foxqueue.job_config import read

        found["config"] = read(path)
    return {name: value for name, value in found.items() if value is not None}


def numbers(texts: Iterable[str], last: Callable[[], int]) -> list[int]:
    """Numbers of jobs as written for ``--after``: ``41,42``, ``5-8``, ``last``.

    Raises:
        InvalidInput: one is malformed.
    """
    from foxqueue.selection import LAST, read_numbers

    words = [word for text in texts for word in text.split(",")]
    ranges, with_last = read_numbers(word for word in words if word != LAST)
    found = [number for numbers in ranges for number in numbers]
    return [*found, last()] if with_last or LAST in words else found


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
