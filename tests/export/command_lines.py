"""Holds command lines against the lists of flags that docs/generate_engine_flags.py read out of the programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hisearch.export.benchmark import GUIDELLM_VERSION
from hisearch.export.engines.flags import ROUTER_VERSION
from hisearch.export.engines.releases import READ
from hisearch.export.servers.fronts import STACK_VERSION, VLLM_ROUTER_VERSION

FLAGS = Path(__file__).parent / "flags"

#: The newest versions whose lists are here.
VERSIONS = {
    "sglang": READ["sglang"][-1],
    "sglang-bench-serving": READ["sglang"][-1],
    "sglang-router": ROUTER_VERSION,
    "vllm-router": VLLM_ROUTER_VERSION,
    "production-stack": STACK_VERSION,
    "dynamo-frontend": "1.1.1",
    "vllm": READ["vllm"][-1],
    "vllm-bench-serve": READ["vllm"][-1],
    "trtllm": READ["trtllm"][-1],
    "guidellm": GUIDELLM_VERSION,
}
#: Those of the engines in Dynamo's images.
OF_DYNAMO = {"sglang": "0.5.9", "vllm": "0.19.1", "trtllm": "1.3.0rc5.post1"}


def known_flags(program: str, version: str = "") -> dict[str, dict[str, Any]]:
    """Flag -> what it takes; a vLLM switch may have a ``--no-`` form (argparse.BooleanOptionalAction).

    Args:
        program: as its list is called.
        version: of the list; the newest where "", and where a release of TensorRT-LLM has none.
    """
    if not version or (program == "trtllm" and version not in READ["trtllm"]):
        version = VERSIONS[program]
    document = json.loads((FLAGS / f"{program}-{version}.json").read_text())
    assert document["version"] == version
    flags: dict[str, dict[str, Any]] = document["flags"]
    negated = {flag.replace("--", "--no-", 1): about for flag, about in flags.items() if about.get("negated")}
    return flags | negated


def parse(program: str, words: list[str], version: str = "") -> dict[str, list[str]]:
    """Flag -> what followed it, as the program's own parser would take it.

    Raises:
        AssertionError: a flag that there is not, or is deprecated, given twice, without what it needs, or with a word
            that it refuses.
    """
    known, parsed = known_flags(program, version), dict[str, list[str]]()
    at = 0
    while at < len(words):
        flag = words[at]
        assert flag in known, f"{program} has no {flag}"
        about = known[flag]
        assert not about.get("deprecated"), f"{flag} is deprecated"
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
