"""What one look found, and how looks are made: a broken one hides no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from foxqueue.errors import FoxqueueError, ServerError, ServerUnavailable

_SEE_THE_SERVER = "see that the server runs, and its log"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: a short word, the same in every report.
        detail: what was found.
        cure: what to do when it is not ok.
        required: whether foxqueue cannot work without it.
    """

    name: str
    ok: bool
    detail: str
    cure: str | None = None
    required: bool = False


Look = Callable[[], Check | Iterable[Check] | None]


def make(name: str, look: Look, required: bool = False) -> list[Check]:
    """Make one look, which gives one check, several, or none where it does not apply.

    Args:
        name: of the check, should the look itself fail.
        look: what to do.
        required: whether foxqueue cannot work when the look fails.

    Raises:
        ServerUnavailable: the server did not answer at all; no other question to it would be answered.
    """
    try:
        found = look()
        if found is None:
            return []
        return [found] if isinstance(found, Check) else list(found)
    except ServerUnavailable as error:
        if not error.definite:
            raise
        return [failed(name, error, required)]
    except FoxqueueError as error:
        return [failed(name, error, required)]
    except Exception as error:  # noqa: BLE001 - what one look meets must not hide what the others find
        detail = f"could not be looked at ({type(error).__name__}: {error})"
        return [Check(name, False, detail, "see what it says", required)]


def failed(name: str, error: FoxqueueError, required: bool = False) -> Check:
    """A look that met an error."""
    cure = error.cure or _SEE_THE_SERVER if isinstance(error, ServerError) else "see what it says"
    return Check(name, False, str(error), cure, required)


def size(count: int) -> str:
    """Bytes as people read them: ``1.5 GiB``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"
