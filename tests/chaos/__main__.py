"""``make chaos``: by hand, with thousands of jobs."""

from __future__ import annotations

import argparse
import secrets
import sys

from chaos.scene import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000, help="how many jobs")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6), help="what is killed, and which jobs")
    parser.add_argument("--pace", type=float, default=0.1, help="how long a job lasts on average, seconds")
    parser.add_argument("--minutes", type=float, default=15.0, help="after which the killing stops")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    try:
        print(play(given.jobs, given.seed, given.pace, given.minutes * 60))
    except AssertionError as error:
        print(f"{error}\nthe directory of this run is kept under the temporary directory (fq-chaos-*)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
