"""Holds command lines against the lists of flags that docs/generate_engine_flags.py read out of the programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hisearch.export.benchmark import GUIDELLM_VERSION
from hisearch.export.engines.flags import ENGINE_VERSIONS, ROUTER_VERSION
from hisearch.export.servers.fronts import VLLM_ROUTER_VERSION

FLAGS = Path(__file__).parent / "flags"

VERSIONS = {
    "sglang": ENGINE_VERSIONS["sglang"],
    "sglang-bench-serving": ENGINE_VERSIONS["sglang"],
    "sglang-router": ROUTER_VERSION,
    "vllm-router": VLLM_ROUTER_VERSION,
    "vllm": ENGINE_VERSIONS["vllm"],
    "vllm-bench-serve": ENGINE_VERSIONS["vllm"],
    "trtllm": ENGINE_VERSIONS["trtllm"],
    "guidellm": GUIDELLM_VERSION,
}


def known_flags(program: str) -> dict[str, dict[str, Any]]:
    """Flag -> what it takes; a vLLM switch has a ``--no-`` form (argparse.BooleanOptionalAction)."""
    document = json.loads((FLAGS / f"{program}-{VERSIONS[program]}.json").read_text())
    assert document["version"] == VERSIONS[program]
    flags: dict[str, dict[str, Any]] = document["flags"]
    negated = {flag.replace("--", "--no-", 1): about for flag, about in flags.items() if about.get("negated")}
    return flags | negated


def parse(program: str, words: list[str]) -> dict[str, list[str]]:
    """Flag -> what followed it, as the program's own parser would take it.

    Raises:
        AssertionError: a flag that there is not, given twice, without what it needs, or with a word that it refuses.
    """
    known, parsed = known_flags(program), dict[str, list[str]]()
    at = 0
    while at < len(words):
        flag = words[at]
        assert flag in known, f"{program} has no {flag}"
        about = known[flag]
        assert flag not in parsed or about.get("repeats"), f"{flag} is given twice"
        end = at + 1
        while end < len(words) and not words[end].startswith("--"):
            end += 1
        values = words[at + 1 : end]
        if about.get("switch"):
            assert values == [], f"{flag} takes nothing, got {values}"
        else:
            assert values, f"{flag} needs a value"
        for value in values if "choices" in about else ():
            assert value in about["choices"], f"{flag} {value}: expected one of {about['choices']}"
        if "kinds" in about:
            check_kind(flag, values[0], about["kinds"])
        parsed[flag] = [*parsed.get(flag, []), *values]
        at = end
    return parsed


def check_kind(flag: str, text: str, kinds: dict[str, list[str]]) -> None:
    """guidellm's ``kind=NAME,key=value,…``; keys of a nested source are ``source.key``."""
    pairs = dict(pair.split("=", 1) for pair in text.split(","))
    assert pairs["kind"] in kinds, f"{flag}: no kind {pairs['kind']}"
    for key in pairs:
        outer, _, inner = key.partition(".")
        assert outer in kinds[pairs["kind"]], f"{flag} kind={pairs['kind']} has no {key}"
        if inner:
            assert inner in kinds[pairs["source.kind"]], f"{flag} source has no {inner}"
