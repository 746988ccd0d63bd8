"""Leaves no room on the disk where it runs."""

import os
from pathlib import Path


def fill(size):
    with Path(os.environ["FOXQUEUE_DIR"], "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65536)) == 65536:
                pass
            while file.write(b"x"):
                pass
        except OSError:
            pass
    if not size:
        raise ValueError("y" * 20_000)
    return b"x" * size
