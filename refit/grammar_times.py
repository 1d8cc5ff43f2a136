"""How long xgrammar takes to compile JSON schemas, to fill masks of tokens, and to take tokens in.

``PYTHON -m refit.grammar_times`` with the Python of an environment that has xgrammar (and torch). The vocabulary is
synthetic: 128,000 pieces of the text files of that environment, the most frequent first, all single bytes among them.
Outputs are drawn evenly from the printable tokens that a mask allows. It imports nothing of hisearch.
"""

# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import collections
import functools
import itertools
import json
import random
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = 128_000
_TEXTS = (".py", ".json", ".md", ".txt", ".rst")
_PIECE = re.compile(r" ?[A-Za-z]{1,12}|\d{1,3}| ?[^\sA-Za-z0-9]{1,4}|\s{1,16}")


def _object(**kinds: str) -> dict[str, Any]:
    return {
        "type": "object", "properties": {name: {"type": kind} for name, kind in kinds.items()},
        "required": list(kinds), "additionalProperties": False,
    }  # fmt: skip


def _chain(levels: int) -> dict[str, Any]:
    """Objects of ten fields, each with a list of the next."""
    definitions = {}
    for level in range(levels):
        further: dict[str, Any] = {"type": "number"}
        if level < levels - 1:
            further = {"type": "array", "items": {"$ref": f"#/$defs/level{level + 1}"}}
        kinds: list[dict[str, Any]] = [
            {"type": "string"}, {"type": "integer"}, further, {"enum": [f"value{k}" for k in range(12)]},
            {"type": ["string", "null"]},
        ]  # fmt: skip
        fields = {f"field{level}_{k}": kinds[k % 5] for k in range(10)}
        definitions[f"level{level}"] = {
            "type": "object", "properties": fields, "required": list(fields)[:5], "additionalProperties": False,
        }  # fmt: skip
    return {"$defs": definitions, "$ref": "#/$defs/level0"}


_PERSON = _object(name="string", age="integer", email="string", active="boolean", score="number")
SCHEMAS: dict[str, dict[str, Any]] = {
    "5 fields": _PERSON,
    "nested": {
        "type": "object", "required": ["title", "authors"], "additionalProperties": False,
        "properties": {
            "title": {"type": "string"}, "authors": {"type": "array", "items": _PERSON},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue", "other"]}},
            "published": {"type": "string", "format": "date"},
        },
    },
    "10 tools": {
        "anyOf": [
            {
                "type": "object", "required": ["name", "arguments"], "additionalProperties": False,
                "properties": {"name": {"const": f"tool_{k}"}, "arguments": _object(city="string", days="integer")},
            }
            for k in range(10)
        ]
    },
    "120 fields": _chain(12),
    "any object": {"type": "object"},
    "maxLength 200": {
        "type": "object", "required": ["note"], "additionalProperties": False,
        "properties": {"note": {"type": "string", "maxLength": 200}},
    },
}  # fmt: skip


def vocabulary() -> list[bytes]:
    """Tokens, shuffled; the last one ends an output."""
    counts: collections.Counter[str] = collections.Counter()
    characters = 0
    for path in sorted(Path(sys.prefix).rglob("*")):
        if path.suffix in _TEXTS and path.is_file() and path.stat().st_size < 400_000:
            text = path.read_text(errors="ignore")
            counts.update(_PIECE.findall(text))
            characters += len(text)
            if characters > 120_000_000:
                break
    words = (piece.encode() for piece, _ in counts.most_common())
    pieces = itertools.chain((bytes([byte]) for byte in range(256)), (cut for word in words for cut in _cuts(word)))
    tokens = list(itertools.islice(dict.fromkeys(pieces), VOCABULARY - 1))
    random.Random(1).shuffle(tokens)
    return [*tokens, b"</s>"]


def _cuts(word: bytes) -> Iterator[bytes]:
    yield from (word, word[:4], word[:6])


def _timed(call: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> tuple[float, Any]:
    """Seconds of a call, of this thread: other processes do not count."""
    begin = clock()
    value = call()
    return clock() - begin, value


def _step(matcher: Any, mask: Any, tokens: list[bytes], rng: random.Random) -> tuple[float, float]:
    """Seconds of a mask and of a token."""
    fill_s, _ = _timed(lambda: matcher.fill_next_token_bitmask(mask, 0))
    allowed = np.flatnonzero(np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")[: len(tokens)])
    drawn = [int(allowed[rng.randrange(len(allowed))]) for _ in range(60)]
    token = next((k for k in drawn if tokens[k].isascii() and tokens[k].decode().isprintable()), int(allowed[0]))
    accept_s, _ = _timed(lambda: matcher.accept_token(token))
    return fill_s, accept_s


def main() -> None:
    """Print a row a schema."""
    import torch
    import xgrammar

    torch.set_num_threads(1)
    tokens = vocabulary()
    info = xgrammar.TokenizerInfo(
        tokens, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[len(tokens) - 1]
    )
    mask = xgrammar.allocate_token_bitmask(1, len(tokens))
    print(f"xgrammar {version('xgrammar')}, {len(tokens)} tokens")
    compiled: dict[str, Any] = {}
    for name, schema in SCHEMAS.items():
        text, compile_s = json.dumps(schema), []
        for _ in range(3):
            compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
            seconds, compiled[name] = _timed(functools.partial(compiler.compile_json_schema, text))
            compile_s.append(seconds)
        rng, steps = random.Random(3), []
        for _ in range(6):
            matcher = xgrammar.GrammarMatcher(compiled[name])
            for _ in range(150):
                steps.append(_step(matcher, mask, tokens, rng))
                if matcher.is_terminated():
                    break
        fill_us, accept_us = (1e6 * np.array(column) for column in zip(*steps, strict=True))
        print(
            f"{name}: compile {1e3 * statistics.median(compile_s):.1f} ms; fill mean {fill_us.mean():.1f} us, "
            f"p10 {np.percentile(fill_us, 10):.1f}, p90 {np.percentile(fill_us, 90):.1f}; "
            f"accept {accept_us.mean():.1f} us"
        )
    _print_threads(xgrammar, compiled["5 fields"], len(tokens))


def _all(pool: ThreadPoolExecutor, fill: Callable[[int], None], firsts: range) -> None:
    list(pool.map(fill, firsts))


def _print_threads(xgrammar: Any, grammar: Any, tokens: int) -> None:
    """What a second thread gains where 256 masks are filled 16 by 16, as vLLM does."""
    matchers = [xgrammar.GrammarMatcher(grammar) for _ in range(256)]
    masks = xgrammar.allocate_token_bitmask(256, tokens)

    def fill(first: int) -> None:
        for k in range(first, first + 16):
            matchers[k].fill_next_token_bitmask(masks, k)

    firsts = range(0, 256, 16)
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            times = [_timed(functools.partial(_all, pool, fill, firsts), time.perf_counter)[0] for _ in range(40)]
        print(f"256 masks in {threads} threads: {1e3 * min(times):.2f} ms")


if __name__ == "__main__":
    main()
