"""What one rank of a tensor-parallel worker holds: heads, KV heads, FFN widths."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.specs.model import ModelSpec


class InvalidParallelism(ValueError):  # noqa: N818
    """A model cannot be split over this many ranks."""


@dataclass(frozen=True)
class Shard:
    """Widths of one rank. KV heads are replicated when there are more ranks than KV heads."""

    ranks: int
    heads: int
    kv_heads: int
    intermediate: int
    expert_intermediate: int
    shared_intermediate: int
    vocab: int


def dense_layers(model: ModelSpec) -> int:
    """Layers with a dense FFN."""
    return model.layers if model.moe is None else min(model.moe.leading_dense_layers, model.layers)


def moe_layers(model: ModelSpec) -> int:
    """Layers with routed experts."""
    return model.layers - dense_layers(model)


def window_layers(model: ModelSpec) -> int:
    """Layers whose attention sees a sliding window only."""
    return round(model.layers * model.sliding_window_layer_fraction) if model.sliding_window_tokens else 0


def shard(model: ModelSpec, tensor_parallel: int) -> Shard:
    """The widths of one of ``tensor_parallel`` ranks. Experts are split along their intermediate width, as TP does.

    Raises:
        InvalidParallelism: a width is not a multiple of ``tensor_parallel``.
    """
    name = model.huggingface_id
    _divide(name, "attention_heads", model.attention_heads, tensor_parallel)
    if model.attention == "gqa" and model.kv_heads % tensor_parallel and tensor_parallel % model.kv_heads:
        raise InvalidParallelism(
            f"{name}: tensor_parallel {tensor_parallel} neither divides kv_heads {model.kv_heads} "
            "nor is a multiple of it"
        )
    moe = model.moe
    return Shard(
        ranks=tensor_parallel,
        heads=model.attention_heads // tensor_parallel,
        kv_heads=max(1, model.kv_heads // tensor_parallel),
        intermediate=(
            _divide(name, "intermediate_size", model.intermediate_size, tensor_parallel) if dense_layers(model) else 0
        ),
        expert_intermediate=(
            _divide(name, "expert_intermediate_size", moe.expert_intermediate_size, tensor_parallel) if moe else 0
        ),
        shared_intermediate=(
            _divide(name, "shared_intermediate_size", moe.shared_intermediate_size, tensor_parallel) if moe else 0
        ),
        vocab=-(-model.vocab_size // tensor_parallel),
    )


def _divide(name: str, what: str, size: int, ranks: int) -> int:
    if size % ranks:
        raise InvalidParallelism(f"{name}: tensor_parallel {ranks} does not divide {what} {size}")
    return size // ranks
