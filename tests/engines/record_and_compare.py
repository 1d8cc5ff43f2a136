"""Hold the simulator and its exports against the modelled engines, on fresh random cases: ``make test-engines``.

Each engine, sglang-router and Dynamo's router record cases with seeds that were never used before, and the simulator
repeats them. A difference of an engine is made as short as it can be and kept. Each engine's own parser reads the
command lines that exports write.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from hisearch.validate.router.replay import validate_routers
from hisearch.validate.scheduler import SchedulerCase, validate_recordings
from tests.engines.environments import ENGINES, ROOT, ROUTERS, Engine, NoEngineError, record
from tests.engines.exported_commands import refused_commands
from tests.engines.shrink import shrink_recording

#: Least share of the cases that has to be recorded: an engine may fail on a few by its own fault.
LEAST_RECORDED = 0.75


def main() -> int:
    """Record and compare; the exit status is 1 where something differs, 2 where an engine could not be asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--engine", action="append", choices=sorted([*ENGINES, *ROUTERS]), help="may be repeated (default: all)"
    )
    parser.add_argument("--cases", type=int, default=40, metavar="N", help="random cases of each engine (default: 40)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**8, help="the first (default: the time)")
    parser.add_argument("--keep-long", action="store_true", help="do not shorten what differs")
    options = parser.parse_args()
    status = 0
    for title in options.engine or [*ENGINES, *ROUTERS]:
        try:
            if title in ROUTERS:
                for feature in ["", *features(ROUTERS[title])]:
                    same = compare_router(ROUTERS[title], options.cases, options.seed, feature)
                    status = status or (0 if same else 1)
                continue
            is_equal = compare(ENGINES[title], options.cases, options.seed, shorten=not options.keep_long)
            for feature in features(ENGINES[title]):
                is_equal &= compare(
                    ENGINES[title], options.cases, options.seed, feature=feature, shorten=not options.keep_long
                )
            is_equal &= parse(ENGINES[title])
        except NoEngineError as error:
            print(f"{title}: {error}", file=sys.stderr)
            status = 2
        else:
            status = status or (0 if is_equal else 1)
    return status


def features(engine: Engine) -> list[str]:
    """What cases are recorded with beside the settings of every case; KV events go through NATS, where that is."""
    if engine.name == "dynamo":
        return ["events"] if shutil.which("nats-server") else []
    if engine.title == "sglang-0.5.23":
        return ["drafts", "grammars", "windows"]
    known = {"vllm": ["windows", "drafts", "grammars", "offload", "lmcache"], "sglang": ["grammars"], "router": ["pd"]}
    return known.get(engine.name, [])


def compare(engine: Engine, cases: int, seed: int, *, feature: str = "", shorten: bool) -> bool:
    """Whether all that the engine records is simulated step by step; prints how much, and what differs.

    ``feature``: see ``features``.
    """
    title = f"{engine.title}-{feature}" if feature else engine.title
    out = ROOT / ".engines" / "recordings" / f"{title}-{seed}"
    record(engine, out, "--random", str(cases), "--seed", str(seed), *(["--with", feature] if feature else []))
    recordings = sorted(out.glob("*.json.gz"))
    wrong = [case for case in validate_recordings(recordings) if not case.ok]
    print(f"{title}: {len(recordings) - len(wrong)} of {len(recordings)} recordings simulated step by step")
    if len(recordings) < cases:
        print(f"{title}: the engine failed on {cases - len(recordings)} of {cases} cases (see above)")
    for case in wrong:
        print(f"  {case.file}: {case.error or _step(case)}")
    differing = [case for case in wrong if case.error is None]
    if differing and shorten:
        least = min(differing, key=lambda case: case.steps or 0)
        kept = ROOT / ".engines" / "differences" / f"{title}-{Path(least.file).name}"
        print(f"  shortest case that differs: {shrink_recording(Path(least.file), engine.title, kept)}")
    return not wrong and len(recordings) >= LEAST_RECORDED * cases


def compare_router(router: Engine, cases: int, seed: int, feature: str) -> bool:
    """Whether the simulator makes every choice that the router makes; prints how many, and what differs.

    ``feature``: see ``features``.
    """
    title = f"{router.title}-{feature}" if feature else router.title
    out = ROOT / ".engines" / "recordings" / f"{title}-{seed}"
    record(router, out, "--random", str(cases), "--seed", str(seed), *(["--with", feature] if feature else []))
    replayed = list(validate_routers(sorted(out.glob("*.json.gz"))))
    wrong = [case for case in replayed if not case.ok]
    choices = sum(case.choices for case in replayed)
    print(f"{title}: {len(replayed) - len(wrong)} of {len(replayed)} recordings and their {choices} choices reproduced")
    for case in wrong:
        print(f"  {case.file}: {case.error or f'{case.choices - case.equal} of {case.choices} choices differ'}")
    return not wrong and len(replayed) >= LEAST_RECORDED * cases


def _step(case: SchedulerCase) -> str:
    """Where a case differs first."""
    return "differs" if case.first_difference is None else f"differs from step {case.first_difference.step}"


def parse(engine: Engine) -> bool:
    """Whether the engine's own parser takes the command lines that exports write; prints those that it refuses."""
    refused, unchecked, asked = refused_commands(engine)
    print(f"{engine.title}: its parser takes {asked - len(refused)} of {asked} exported command lines")
    for name, text in [*refused.items(), *unchecked.items()]:
        print(f"  {name}: {text}")
    return not refused


if __name__ == "__main__":
    sys.exit(main())
