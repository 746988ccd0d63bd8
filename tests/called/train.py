"""A script whose functions are called: run, it does something else."""

import multiprocessing
import sys
from dataclasses import dataclass
from pathlib import Path


class Mine(Exception):
    pass


@dataclass
class Point:
    x: int


def double(n):
    return 2 * n


def main_function(n):
    import helper_beside

    return [n, helper_beside.NAME, __name__, Path(sys.argv[0]).name]


def parallel():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, [1, 2])


def fails():
    raise Mine("mine")


if __name__ == "__main__":
    raise SystemExit("it was run, not imported")
