"""Make a case whose recording differs from its simulation as short as it can: fewer requests, shorter ones.

Each round tries many shorter cases at once: the engine records all of them in one process, and the shortest that still
differs is taken. The result is a recording of the shortest case.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import math
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from hisearch.record.cases import write_recording
from hisearch.validate.scheduler import validate_recordings
from tests.engines.environments import ENGINES, NoEngineError, record

#: A case: ``config`` and ``requests`` of a recording.
Case = dict[str, Any]
#: Of several cases, whether each still differs.
Differs = Callable[[list[Case]], list[bool]]
#: Cases tried in a round.
MOST = 24
#: Usual time to look for a shorter case.
MINUTES = 10


def shorter(case: Case, parts: int, block_key: str) -> Iterator[Case]:
    """Cases without one of ``parts`` parts of the requests; then with the lengths of one part halved."""
    rows = case["requests"]
    size = -(-len(rows) // parts)
    for start in range(0, len(rows), size):
        if size < len(rows):
            yield case | {"requests": rows[:start] + rows[start + size :]}
    for key in ("output_tokens", "input_tokens"):
        for start in range(0, len(rows), size):
            halved = [halve(row, key, case["config"][block_key]) for row in rows[start : start + size]]
            if halved != rows[start : start + size]:
                yield case | {"requests": rows[:start] + halved + rows[start + size :]}


def halve(row: dict[str, Any], key: str, block_tokens: int) -> dict[str, Any]:
    """A request with half of its prompt or output; names of blocks that it no longer fills are dropped.

    A prompt loses its end: what it shares with others from its start stays shared, its output's blocks get fresh names.
    """
    row = copy.copy(row)
    before = row[key]
    row[key] = max(1, before // 2)
    if "max_output_tokens" in row and key == "output_tokens":
        row["max_output_tokens"] -= before - row[key]
    total = row["input_tokens"] + row["output_tokens"]
    if key == "input_tokens" and before != row[key]:
        kept = row[key] // block_tokens
        fresh = [
            -1 - zlib.crc32(f"{row['id']} {kept} {index}".encode()) for index in range(total // block_tokens - kept)
        ]
        row["block_ids"] = row["block_ids"][:kept] + fresh
    row["block_ids"] = row["block_ids"][: total // block_tokens]
    return row


def renamed(case: Case) -> Case:
    """The same case with ``block_ids`` counted from 0."""
    names: dict[int, int] = {}
    rows = [
        row | {"block_ids": [names.setdefault(name, len(names)) for name in row["block_ids"]]}
        for row in case["requests"]
    ]
    return case | {"requests": rows}


def shrink(case: Case, differs: Differs, block_key: str, seconds: float = math.inf) -> Case:
    """The shortest case that still differs, as far as dropping and halving leads in about ``seconds``."""
    parts, until = 2, time.monotonic() + seconds
    while True:
        candidates = sorted(shorter(case, parts, block_key), key=length)
        for start in range(0, len(candidates), MOST):
            if time.monotonic() > until:
                return renamed(case)
            tried = candidates[start : start + MOST]
            differing = [trial for trial, still in zip(tried, differs(tried), strict=True) if still]
            if differing:
                case = differing[0]
                print(f"{len(case['requests'])} requests, {length(case)} tokens", file=sys.stderr, flush=True)
                break
        else:
            if parts >= len(case["requests"]):
                return renamed(case)
            parts *= 2
        parts = max(2, min(parts, len(case["requests"])))


def length(case: Case) -> int:
    """Tokens of all requests, and one for each request."""
    return sum(1 + row["input_tokens"] + row["output_tokens"] for row in case["requests"])


def recorded_differently(title: str) -> Differs:
    """``differs`` by recording with an engine and simulating."""

    def differs(cases: list[Case]) -> list[bool]:
        with tempfile.TemporaryDirectory() as folder:
            given, out = Path(folder) / "cases", Path(folder) / "recordings"
            given.mkdir()
            paths = [given / f"case-{index:03d}.json" for index in range(len(cases))]
            for path, case in zip(paths, cases, strict=True):
                path.write_text(json.dumps(renamed(case)))
            record(ENGINES[title], out, "--cases", *map(str, paths))
            recordings = [out / f"{path.stem}.json.gz" for path in paths]
            verdicts = {
                case.file: not case.ok and case.error is None
                for case in validate_recordings(path for path in recordings if path.exists())
            }
            return [verdicts.get(str(path), False) for path in recordings]

    return differs


def shrink_recording(recording: Path, title: str, out: Path, minutes: float = MINUTES) -> str:
    """Record, into ``out``, the shortest case found that differs as ``recording`` does; returns what it is.

    Args:
        recording: one that differs from its simulation.
        title: of the engine.
        out: file of the shortest case.
        minutes: time to look for it.

    Raises:
        ValueError: the recording does not differ from its simulation.
    """
    (verdict,) = validate_recordings([recording])
    if verdict.ok or verdict.error:
        raise ValueError(f"{recording}: {verdict.error or 'does not differ from its simulation'}")
    recorded = json.loads(gzip.decompress(recording.read_bytes()))
    case = {"config": recorded["config"], "requests": recorded["requests"]}
    block_key = "block_size" if verdict.engine == "vllm" else "block_ids_size"
    case = shrink(case, recorded_differently(title), block_key, 60 * minutes)
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "shortest.json.gz"
        write_recording(given, case)
        record(ENGINES[title], Path(folder) / "out", "--cases", str(given))
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(folder) / "out" / given.name, out)
    return f"{out}: {len(case['requests'])} requests, {length(case)} tokens and requests"


def main() -> int:
    """Shrink a recording's case and record it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, metavar="M", help=f"time to look for it (default: {MINUTES})"
    )
    parser.add_argument("--out", type=Path, default=Path("shortest.json.gz"), help="(default: shortest.json.gz)")
    options = parser.parse_args()
    try:
        print(shrink_recording(options.recording, options.engine, options.out, options.minutes))
    except (ValueError, NoEngineError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
