"""`foxqueue config`: what belongs to the namespace, whoever asks and from wherever."""

from __future__ import annotations

from typing import Any

import click

from foxqueue.cli import output
from foxqueue.cli.options import client, common, json_option


@click.group("config", short_help="Settings of the namespace.")
@common
def config() -> None:
    """Settings of the namespace, which hold for everybody who uses it. Changes are written into its audit trail."""


@config.command(short_help="Show settings.")
@click.argument("name", required=False)
@json_option
@common
def get(name: str | None, as_json: bool) -> int:
    """Show all settings, or one."""
    from foxqueue.settings import PRIORITY, SETTINGS, change

    rows = _rows()
    if name is not None:
        shown = name.lower() if name.startswith(PRIORITY) else name
        if shown not in rows:
            change(name, "default")  # says which there are
        rows = {shown: rows.get(shown, "medium")}
    if as_json:
        output.write_json(rows)
    elif name is not None:
        output.write(f"{next(iter(rows.values()))}\n")
    else:
        abouts = {shown: setting.about for shown, setting in SETTINGS.items()} | _FIXED
        output.table(
            ["SETTING", "VALUE", "MEANING"],
            [[shown, value, abouts.get(shown, "Priority of this model type.")] for shown, value in rows.items()],
        )
    return 0


_FIXED = {
    "lease": "Length of a lease; foxqueue up --lease-ttl sets it in an empty namespace.",
    "schema": "Of the data; an older foxqueue refuses a newer one.",
}


def _rows() -> dict[str, Any]:
    from foxqueue.settings import PRIORITY, SETTINGS

    now = client().broker.settings()
    rows = {name: setting.show(getattr(now, setting.field)) for name, setting in SETTINGS.items()}
    rows |= {f"{PRIORITY}{model}": str(priority) for model, priority in sorted(now.priorities.items())}
    return rows | {"lease": f"{now.ttl_ms / 1000:g}s", "schema": str(now.schema)}


@config.command("set", short_help="Change a setting.")
@click.argument("name")
@click.argument("value")
@common
def set_value(name: str, value: str) -> int:
    """Change a setting; the value default brings its default back.

    priority.MODEL is the priority of jobs of that model type which give none: 0 to 9, low, medium or high.
    """
    from foxqueue.settings import PRIORITY, PRIORITY_FIELD, change
    from foxqueue.submission import user

    field, text = change(name, value)
    client().broker.change_settings({field: text}, user())
    shown = PRIORITY + field.removeprefix(PRIORITY_FIELD) if field.startswith(PRIORITY_FIELD) else name
    output.write(f"{shown} = {_rows().get(shown, 'medium')}\n")
    return 0
