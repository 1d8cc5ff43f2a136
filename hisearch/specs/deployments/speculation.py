"""Speculative decoding: an engine drafts tokens, and the model checks them all in one step."""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate
from operator import mul
from typing import Annotated, Protocol

from pydantic import Field, model_validator

from hisearch.specs.base import ENGINE_TITLES, Count, EngineName, Fraction, Seed, Strict
from hisearch.specs.deployments.engine_rules import rules_version
from hisearch.specs.errors import KeyedError
from hisearch.specs.models.acceptance import DRAFT_METHODS, DraftMethodName
from hisearch.specs.models.model import ModelSpec, WeightsName
from hisearch.specs.versions import precedes
from hisearch.specs.wording import counted

#: Most drafted tokens of a step.
MOST_DRAFT_TOKENS = 16

#: Methods whose head reads the model's hidden states, and keeps KV of its own.
HEADS: frozenset[DraftMethodName] = frozenset({"mtp", "eagle", "eagle3"})
#: Methods whose head is a checkpoint of its own.
OWN_WEIGHTS: frozenset[DraftMethodName] = frozenset({"eagle", "eagle3"})
#: Methods that an engine has: TensorRT-LLM's PyTorch backend knows EAGLE's heads of the third version alone.
METHODS: dict[EngineName, frozenset[DraftMethodName]] = {
    "vllm": frozenset(DRAFT_METHODS),
    "sglang": frozenset(DRAFT_METHODS),
    "trtllm": frozenset({"mtp", "eagle3", "ngram"}),
}
#: Engines that do not form a batch ahead of results with n-grams: vLLM's ``config/vllm.py``, TensorRT-LLM's
#: ``speculative/interface.py: SpeculativeDecodingMode.support_overlap_scheduler``.
NO_OVERLAP_WITH_NGRAM: frozenset[EngineName] = frozenset({"vllm", "trtllm"})
#: SGLang's first release whose rules with drafts are simulated.
SGLANG_SINCE = "0.5.23"


class SpeculationSpec(Strict):
    """Drafted tokens: `--speculative-config`, `--speculative-algorithm`, TensorRT-LLM's `speculative_config`."""

    method: DraftMethodName = Field(
        description="vLLM method; SGLang's algorithms NEXTN, EAGLE, EAGLE3 and NGRAM; TensorRT-LLM's MTP, Eagle "
        "(eagle3) and NGram. mtp: the model's own layer of multi-token prediction; eagle, eagle3: a head with weights "
        "of its own; ngram: what followed the same tokens before."
    )
    draft_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFT_TOKENS)] = Field(
        description="Tokens drafted for each sequence and step, one behind the other: vLLM num_speculative_tokens; "
        "SGLang speculative_num_draft_tokens less one, with speculative_eagle_topk 1; TensorRT-LLM max_draft_len, of "
        "MTP num_nextn_predict_layers."
    )
    acceptance: list[Fraction] | None = Field(
        None,
        description="For each drafted position, the probability that it is accepted if all before it were, on your "
        "text; the model's measured curve where absent.",
    )
    seed: Seed = Field(0, description="Of the draws of what is accepted.")
    draft_layers: Count = Field(1, description="Layers of the head; of no effect with ngram.")
    draft_weights: WeightsName | None = Field(
        None,
        description="eagle, eagle3: checkpoint of the head, which launch scripts name; that of the model's curve where "
        "absent.",
    )

    @model_validator(mode="after")
    def _check(self) -> SpeculationSpec:
        if self.acceptance is not None and len(self.acceptance) < self.draft_tokens:
            message = f"states {len(self.acceptance)} positions of {self.draft_tokens} draft_tokens"
            raise KeyedError(("acceptance",), message)
        if self.draft_weights is not None and self.method not in OWN_WEIGHTS:
            raise KeyedError(("draft_weights",), f"{self.method} has no weights of its own; leave it out")
        return self

    @property
    def head_layers(self) -> int:
        """Layers of the head, which keep KV; 0 with ngram."""
        return self.draft_layers if self.method in HEADS else 0

    @property
    def pass_layers(self) -> int:
        """Layers that a draft passes through; 0 with ngram.

        Several of multi-token prediction draft a position each; those of an EAGLE head are passed through in turn.
        """
        return min(self.head_layers, 1) if self.method == "mtp" else self.head_layers

    @property
    def label(self) -> str:
        """``3 drafted tokens (mtp)``."""
        return f"{counted(self.draft_tokens, 'drafted token')} ({self.method})"

    def accepted_by_position(self, model: ModelSpec) -> tuple[float, ...]:
        """For each position k of ``draft_tokens``, the probability that the first k drafted tokens are all accepted.

        Raises:
            KeyedError: neither ``acceptance`` nor the model's curve states it.
        """
        if self.acceptance is not None:
            return tuple(accumulate(self.acceptance[: self.draft_tokens], mul))
        curve = model.speculation.get(self.method)
        if curve is None:
            known = f"; known are {', '.join(model.speculation)}" if model.speculation else ""
            raise KeyedError(
                ("acceptance",),
                f"state how often each drafted position is accepted, acceptance: {[0.8] * self.draft_tokens} say: of "
                f"{model.huggingface_id} no curve of {self.method} is known{known}",
            )
        measured = curve.accepted_by_position
        if len(measured) < self.draft_tokens:
            raise KeyedError(
                ("draft_tokens",),
                f"the curve of {model.huggingface_id} ends at {len(measured)} drafted tokens; take fewer, or state "
                "acceptance",
            )
        return measured[: self.draft_tokens]

    def tokens_per_step(self, model: ModelSpec) -> float:
        """Mean tokens of a sequence and step; errors as of ``accepted_by_position``."""
        return 1.0 + sum(self.accepted_by_position(model))


class DraftingEngine(Protocol):
    """An engine's settings, as far as drafted tokens concern them."""

    @property
    def name(self) -> EngineName: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102
    @property
    def overlap(self) -> bool: ...  # noqa: D102
    @property
    def chunk_tokens(self) -> int: ...  # noqa: D102
    @property
    def capacity_policy(self) -> str: ...  # noqa: D102
    @property
    def mixed_chunk(self) -> bool: ...  # noqa: D102
    @property
    def by_priority(self) -> bool: ...  # noqa: D102
    @property
    def speculation(self) -> SpeculationSpec | None: ...  # noqa: D102


def acceptance_note(speculation: SpeculationSpec, model: ModelSpec) -> str:
    """What the acceptance rests on, as a sentence; errors as of ``SpeculationSpec.accepted_by_position``."""
    mean = f"{speculation.label}: {speculation.tokens_per_step(model):.2f} tokens a step"
    if speculation.acceptance is not None:
        return f"{mean} by the acceptance that is stated"
    curve = model.speculation[speculation.method]
    return f"{mean} as measured on {curve.workload}, not on your text; state acceptance as your server logs it"


def simulates_drafts(version: str) -> bool:
    """Whether drafted tokens are simulated by the rules of SGLang's release ``version``; "" is the newest."""
    return not precedes(rules_version("sglang", version), SGLANG_SINCE)


def drafts_of_engine(engine: EngineName, version: str, speculation: SpeculationSpec | None) -> bool:
    """Whether an engine's release drafts so, as it is simulated; no drafts always are."""
    if speculation is None:
        return True
    return speculation.method in METHODS[engine] and (engine != "sglang" or simulates_drafts(version))


def check_speculation(
    engine: DraftingEngine,
    *,
    role: str,
    attention_data: int,
    pipeline: int,
    tiers: bool,
    agents: bool,
    devices: bool,
) -> None:
    """Refuse what is not simulated together with drafted tokens.

    vLLM 0.19.1 refuses n-gram drafts with asynchronous scheduling (``config/vllm.py: VllmConfig.__post_init__``).
    TensorRT-LLM turns its overlap scheduler off (``pyexecutor/py_executor_creator.py``).

    Raises:
        KeyedError: with a key below the pool.
    """
    speculation, key, unified = engine.speculation, ("engine", "speculation"), role == "unified"
    if speculation is None:
        return
    title = ENGINE_TITLES[engine.name]
    if speculation.method not in METHODS[engine.name]:
        known = ", ".join(method for method in DRAFT_METHODS if method in METHODS[engine.name])
        raise KeyedError((*key, "method"), f"{title} has no {speculation.method}; known: {known}")
    if engine.overlap and speculation.method == "ngram" and engine.name in NO_OVERLAP_WITH_NGRAM:
        plans = "asynchronous scheduling" if engine.name == "vllm" else "overlap scheduler"
        raise KeyedError(("engine", "overlap"), f"{title} has no {plans} with ngram; write overlap: false")
    refused = {
        f"with pipeline_parallel {pipeline}": pipeline > 1,
        f"with cache tiers of {role} workers": tiers and role != "prefill",
        "with agents' objects": agents,
        "with attached devices": devices,
    }
    if engine.name == "sglang":
        if not simulates_drafts(engine.version):
            message = f"drafted tokens are simulated by the rules of SGLang {SGLANG_SINCE}, not of {engine.version}"
            raise KeyedError(("engine", "version"), message)
        refused |= {
            f"with attention_data_parallel {attention_data} in unified workers of SGLang": unified
            and attention_data > 1,
            "with mixed_chunk": engine.mixed_chunk,
            "with priorities that preempt": engine.by_priority,
        }
    elif engine.name == "trtllm":
        if engine.chunk_tokens <= speculation.draft_tokens:
            message = f"{engine.chunk_tokens} is no step: a decode computes {1 + speculation.draft_tokens} tokens"
            raise KeyedError(("engine", "chunk_tokens"), message)
        if engine.capacity_policy == "max_utilization" and unified:
            message = "drafted tokens are not simulated with max_utilization; take guaranteed_no_evict or static_batch"
            raise KeyedError(("engine", "capacity_policy"), message)
    for where, is_refused in refused.items():
        if is_refused:
            raise KeyedError(key, f"drafted tokens are not simulated {where}")


def same_drafts(prefill: SpeculationSpec | None, decode: SpeculationSpec | None) -> bool:
    """Whether a prefill worker leaves what a decode worker's drafter needs of a prompt.

    A head drafts from its own KV, which comes with the model's. N-grams come from the text.
    """
    return head_of(prefill) == head_of(decode)


def head_of(drafts: SpeculationSpec | None) -> tuple[str, int, str | None] | None:
    """What tells one head that drafts from another; None without one."""
    if drafts is None or drafts.method not in HEADS:
        return None
    return drafts.method, drafts.head_layers, drafts.draft_weights


def check_speculation_of(
    speculation: SpeculationSpec | None, model: ModelSpec, engines: Collection[EngineName] = ()
) -> None:
    """Refuse drafted tokens of a model for which they are not simulated, or whose acceptance is not known.

    SGLang's tree has other keys, and other rules of what is kept, where a model has states (``is_eagle`` of
    ``mem_cache/unified_cache/unified_tree_core.py``, 0.5.23).

    Raises:
        KeyedError: with a key below the speculation.
    """
    if speculation is None:
        return
    if model.sliding_window_tokens and not model.windows_are_chunks:
        raise KeyedError(
            ("method",), f"drafted tokens are not simulated with sliding windows, as {model.huggingface_id} has them"
        )
    if "sglang" in engines and model.linear_attention is not None:
        raise KeyedError(
            ("method",),
            f"drafted tokens are not simulated under SGLang with linear attention, as {model.huggingface_id} has it",
        )
    speculation.accepted_by_position(model)
