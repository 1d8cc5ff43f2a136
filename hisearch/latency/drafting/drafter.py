"""What a drafter's passes cost: its head priced as a model of one layer, by the estimator of the model itself.

    mtp      a layer of the model's own kind, with experts where it has them, in ``device_memory.draft_head.head_dtype``
    eagle    a dense layer in 16 bits
    eagle3   likewise, with an LM head of ``DRAFT_VOCABULARY`` rows
    ngram    nothing

Each pass also joins the token's embedding to the hidden state (``DraftHeadSpec``). The shape is that of
``device_memory.draft_head``, with its sources. A head of a kind that stands for no single layer costs its share of the
model's layers: compressed or block-sparse attention, layers that attend to earlier blocks. So does one for which the
estimator has no figures; a warning says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from hisearch.latency.costs import CompiledCosts, DraftCosts, StepCosts
from hisearch.latency.device_memory.draft_head import DRAFT_VOCABULARY, FFN_WIDTHS, head_dtype
from hisearch.latency.host import ANY_TOKENS
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.models.acceptance import DraftMethodName
from hisearch.specs.models.draft_head import DraftHeadSpec
from hisearch.specs.models.model import ModelSpec


class Price(Protocol):
    """Prices a model with weights in a format, on the worker that drafts; errors as of ``LatencyEstimator``."""

    def __call__(self, *, model: ModelSpec, weight_dtype: DType) -> CompiledCosts: ...  # noqa: D102


#: Settings of a model that one layer with full attention has not.
_ONE_LAYER: dict[str, Any] = {
    "layers": 1, "ffn_layers": None, "linear_attention": None, "sliding_window_tokens": 0, "window_heads": None,
    "windows_are_chunks": False, "speculation": {}, "towers": None,
}  # fmt: skip
#: And those that a dense one has not.
_DENSE: dict[str, Any] = {"moe": None, "sparse_attention": None, "kept_wide": {}, "other_formats": {}}


def head_model(model: ModelSpec, method: DraftMethodName, layers: int = 1) -> DraftHeadSpec | None:
    """The head of ``model`` that drafts by ``method``, through ``layers`` layers a pass; None: of no such kind."""
    if model.compressed_attention is not None:
        return None
    changed = _ONE_LAYER | {"layers": layers, "joined": 3 if method == "eagle3" else 2, "block_sparse": None}
    if method == "mtp":
        if model.block_sparse is not None or model.residual_block_layers:
            return None
        if model.moe is not None:
            changed["moe"] = model.moe.model_copy(update={"leading_dense_layers": 0})
        if model.sparse_attention is not None:
            changed["sparse_attention"] = model.sparse_attention.model_copy(update={"index_layers": 0})
    else:
        width = model.intermediate_size or FFN_WIDTHS * model.hidden_size
        changed |= _DENSE | {"intermediate_size": width, "residual_block_layers": 0}
        if method == "eagle3":
            changed["vocab_size"] = min(DRAFT_VOCABULARY, model.vocab_size)
    return DraftHeadSpec.model_validate(dict(model) | changed)


def with_drafter(
    costs: CompiledCosts, model: ModelSpec, weight_dtype: DType, engine: EngineSpec, price: Price
) -> CompiledCosts:
    """``costs`` of ``model`` with those of a head that drafts, in seconds and joules.

    See ``with_graphs_of_drafts`` too.

    Args:
        costs: of the model's own steps.
        model: whose tokens are drafted.
        weight_dtype: format of its weights.
        engine: which drafts, or does not.
        price: prices a head on the same worker.
    """
    if engine.speculation is None:
        return costs
    drafted, layers, method = engine.speculation.draft_tokens, engine.speculation.pass_layers, engine.speculation.method
    costs = replace(costs, seconds=with_graphs_of_drafts(costs.seconds, engine.name, drafted))
    if not layers:
        return costs
    share, warnings, head = layers / model.layers, costs.warnings, None
    seconds, joules = (_share_of(of, drafted, share) for of in (costs.seconds, costs.joules))
    if costs.lockstep is not None:
        seconds = seconds._replace(own_s=share * costs.lockstep.own_s, shared_s=share * costs.lockstep.shared_s)
    try:
        if (of_head := head_model(model, method, layers)) is not None:
            head = price(model=of_head, weight_dtype=head_dtype(method, weight_dtype))
    except ValueError as error:
        warnings = (*warnings, f"drafting layers are priced as {share:.1%} of the model's: {error}")
    if head is not None:
        seconds, joules = _of_head(seconds, head.seconds), _of_head(joules, head.joules)
        if head.lockstep is not None:
            seconds = seconds._replace(own_s=head.lockstep.own_s, shared_s=head.lockstep.shared_s)
    return replace(
        costs,
        seconds=costs.seconds._replace(draft=seconds),
        joules=costs.joules._replace(draft=joules),
        warnings=warnings,
    )


def with_graphs_of_drafts(costs: StepCosts, engine: EngineName, draft_tokens: int) -> StepCosts:
    """``costs`` with graphs of as many tokens as an engine's hold that drafts ``draft_tokens`` in a step.

    Those of SGLang and TensorRT-LLM are for so many decodes, each with its drafts (``num_tokens_per_bs`` of
    ``cuda_graph_runner.py``; ``pyexecutor/cuda_graph_runner.py``), vLLM's for so many tokens.
    """
    if engine == "vllm" or costs.floor is None:
        return costs
    most = min(costs.floor.graph_tokens * (1 + draft_tokens), ANY_TOKENS)
    return costs._replace(floor=costs.floor._replace(graph_tokens=most))


def _share_of(costs: StepCosts, draft_tokens: int, share: float) -> DraftCosts:
    return DraftCosts(draft_tokens, share, share * costs.token_s, costs.sequence_s)


def _of_head(draft: DraftCosts, head: StepCosts) -> DraftCosts:
    return draft._replace(token_s=head.token_s, sequence_s=head.sequence_s)
