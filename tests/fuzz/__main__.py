"""Runs every target in turn, a few examples of each at a time, until the time is up.

A target that fails is told with its seed and left out from then on; the exit code is 1.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

import structlog
from hypothesis.errors import HypothesisWarning

from tests.fuzz.journals import FILES, SAID
from tests.fuzz.reviews import CATALOG, REVIEWS
from tests.fuzz.targets import Target, hunt
from tests.fuzz.values import BUDGETS, QUANTITIES, REFERENCES
from tests.fuzz.watching import REPORTS, WATCH

TARGETS = (REVIEWS, CATALOG, REFERENCES, QUANTITIES, BUDGETS, WATCH, REPORTS, FILES, SAID)

LONGEST = 20_000
"""Characters told of one failure, whose example may be a megabyte."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; every target has at least one turn")
    parser.add_argument("--seed", type=int, default=None, help="of the first turn, by default the time")
    names = [target.name for target in TARGETS]
    parser.add_argument("--target", action="append", choices=names, help="only this one; may be repeated")
    told = parser.parse_args(arguments)
    chosen = [target for target in TARGETS if not told.target or target.name in told.target]
    warnings.simplefilter("ignore", HypothesisWarning)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    seed = int(time.time()) if told.seed is None else told.seed
    return run(chosen, seed, until=time.monotonic() + 60 * told.minutes, out=sys.stdout)


def run(
    targets: Sequence[Target], seed: int, until: float, out: TextIO, clock: Callable[[], float] = time.monotonic
) -> int:
    """Turns of all `targets`, each turn with the next seed, until `clock` says so; 1 if any failed."""
    checked: Counter[str] = Counter()
    failed: set[str] = set()
    rounds = 0
    while rounds == 0 or (clock() < until and len(failed) < len(targets)):
        for target in targets:
            if target.name in failed or (rounds and clock() >= until):
                continue
            try:
                checked[target.name] += hunt(target, seed + rounds)
            except Exception as error:
                failed.add(target.name)
                text = "".join(traceback.format_exception(error))
                print(f"{target.name}: failed with --seed {seed + rounds} --target '{target.name}'", file=out)
                print(text if len(text) <= LONGEST else text[:LONGEST] + "\n[...]", file=out, flush=True)
        rounds += 1
    for target in targets:
        verdict = "FAILED" if target.name in failed else "ok"
        print(f"{target.name}: {checked[target.name]} examples, {verdict}", file=out)
    print(f"{rounds} rounds from seed {seed}", file=out, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
