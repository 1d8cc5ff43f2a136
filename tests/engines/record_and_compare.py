"""Let the modelled engines record fresh random cases, and hold the simulator against them: ``make test-engines``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hisearch.validate.scheduler import validate_recordings
from tests.engines.environments import ENGINES, ROOT, record


def main() -> int:
    """Record and compare; the exit status is 1 where a recording differs from its simulation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", action="append", choices=sorted(ENGINES), help="may be repeated (default: all)")
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="random cases of each engine (default: 40)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**8, help="the first (default: the time)")
    options = parser.parse_args()
    different: list[object] = []
    for title in options.engine or sorted(ENGINES):
        out = ROOT / ".engines" / "recordings" / f"{title}-{options.seed}"
        record(ENGINES[title], out, "--random", str(options.cases), "--seed", str(options.seed))
        recordings = sorted(out.glob("*.json.gz"))
        wrong = [case for case in validate_recordings(recordings) if not case.ok]
        different += wrong
        print(f"{title}: {len(recordings) - len(wrong)} of {len(recordings)} recordings simulated step by step")
        if len(recordings) < options.cases:
            print(f"{title}: {options.cases - len(recordings)} cases could not be recorded (see above)")
            different += [None] * (options.cases - len(recordings))
        for case in wrong:
            step = "" if case.first_difference is None else f"differs from step {case.first_difference.step}"
            print(f"  {case.file}: {case.error or step}")
        if wrong:
            print(f"  shorten one: python tests/engines/shrink.py {wrong[0].file} --engine {title}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
