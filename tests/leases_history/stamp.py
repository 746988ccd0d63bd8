"""A job among the leases: it writes into the same history that it has its device. Arguments: folder, seconds.

It starts in ten milliseconds: the standard library only. Its first line counts as the answer: what it was given before
is not known to it. A job that is killed leaves a holding without end, so each says ``holds`` as long as it lives.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from leases_history.history import Book

LOOKS_EVERY_S = 0.02


def main() -> int:
    folder, lasts_s = Path(sys.argv[1]), float(sys.argv[2])
    device, fence, number = (os.environ[f"FOXQUEUE_{name}"] for name in ("GPUS", "FENCE", "JOB_ID"))
    who = f"job-{number}-{fence}"
    book = Book(folder / f"{who}.history", who)
    now = time.monotonic_ns()
    book.note("acquired", device, int(fence), asked=now, at=now)
    ends = time.monotonic() + lasts_s
    while time.monotonic() < ends:
        time.sleep(LOOKS_EVERY_S)
    book.note("releasing", device, int(fence))
    return 0


if __name__ == "__main__":
    sys.exit(main())
