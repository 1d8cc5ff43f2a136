"""Structured output, as a pool's workers serve it: section ``structured_output`` of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from hisearch.specs.base import Count, NonNegative, Strict
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.errors import KeyedError

#: Seconds that xgrammar takes to compile a JSON schema, to fill a sequence's mask, and to take in a token. Measured
#: with versions 0.1.34 and 0.2.8, a synthetic vocabulary of 128,000 tokens and six schemas, on one core of an AMD EPYC
#: (docs/notes/2026-11-structured-output.md). Plausible: 0.01 to 0.1 s, 5 s with a long maxLength; 20 to 120 us; 2 to
#: 12 us.
COMPILE_S, FILL_S, ACCEPT_S = 0.026, 45e-6, 3e-6


class StructuredOutputSpec(Strict):
    """Outputs that follow a grammar, such as a JSON schema: which request's does is the workload's to say.

    A request waits until its grammar is compiled; the host fills a mask for each of its tokens.
    """

    backend: Literal["xgrammar"] = Field(
        "xgrammar", description="vLLM --structured-outputs-config.backend, SGLang --grammar-backend."
    )
    cpu_cores: Count | None = Field(
        None, description="CPU cores that a server sees, by which it sizes its pools of threads; the host's if absent."
    )
    compile_s: NonNegative = Field(
        COMPILE_S, description="Seconds to compile a grammar, where the workload does not say it."
    )
    fill_s: NonNegative = Field(FILL_S, description="Host time to fill a sequence's mask of tokens, in each step.")
    accept_s: NonNegative = Field(ACCEPT_S, description="Host time to take in a sequence's token.")


def check_structured_output(
    structured: StructuredOutputSpec | None, engine: EngineSpec, others: Mapping[str, bool]
) -> None:
    """Refuse what is not simulated together with grammars.

    others: by key of the pool, whether it has something that is not simulated together with grammars.

    Raises:
        KeyedError: with a key below the pool.
    """
    if structured is None:
        return
    key, advice = "structured_output", "leave structured_output out to take all outputs for free text"
    if engine.name not in ("vllm", "sglang"):
        message = f"grammars are simulated for the engines sglang and vllm, not {engine.name}; {advice}"
        raise KeyedError((key,), message)
    own = {
        "speculation": engine.speculation is not None,
        "receive_interval": engine.receive_interval > 1,
        "priority_scheduling": engine.name == "sglang" and engine.by_priority,
    }
    for path, given in [((name,), given) for name, given in others.items()] + [
        (("engine", name), given) for name, given in own.items()
    ]:
        if given:
            raise KeyedError(path, f"not simulated together with {key}; {advice}")
