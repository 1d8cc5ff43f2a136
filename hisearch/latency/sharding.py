"""How a model is split over ranks, and one rank's heads, KV heads, FFN widths, experts and layers."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.specs.machines.parallelism import Parallelism, split_problems
from hisearch.specs.models.model import ModelSpec

__all__ = ["InvalidParallelism", "Parallelism", "Shard", "parallelism_of", "shard"]


class InvalidParallelism(ValueError):  # noqa: N818
    """A model cannot be split over this many ranks.

    Attributes:
        key: of the pool that states the split.
    """

    def __init__(self, message: str, key: str = "tensor_parallel") -> None:
        super().__init__(message)
        self.key = key


def parallelism_of(tensor_parallel: int, parallelism: Parallelism | None) -> Parallelism:
    """``parallelism``, or tensor parallelism alone where it is None.

    Raises:
        InvalidParallelism: the two disagree.
    """
    if parallelism is None:
        return Parallelism(tensor=tensor_parallel)
    if parallelism.tensor != tensor_parallel:
        raise InvalidParallelism(f"tensor_parallel {tensor_parallel} is not the {parallelism.tensor} of {parallelism}")
    return parallelism


@dataclass(frozen=True)
class Shard:
    """Widths of one rank. KV heads are replicated when there are more ranks than KV heads.

    experts: routed experts of a layer on the rank, whole or sliced.
    window_heads, window_kv_heads: of layers with a window, where the model states these apart.
    """

    parallelism: Parallelism
    heads: int
    kv_heads: int
    intermediate: int
    expert_intermediate: int
    shared_intermediate: int
    vocab: int
    experts: int = 0
    linear_key_heads: int = 0
    linear_value_heads: int = 0
    window_heads: int = 0
    window_kv_heads: int = 0


def dense_layers(model: ModelSpec) -> int:
    """Layers with a dense FFN."""
    return model.ffn_count if model.moe is None else min(model.moe.leading_dense_layers, model.ffn_count)


def moe_layers(model: ModelSpec) -> int:
    """Layers with routed experts."""
    return model.ffn_count - dense_layers(model)


def expert_hidden(model: ModelSpec) -> int:
    """Width of what goes into a routed expert and comes out: of the latent, where there is one."""
    return model.moe.latent_size or model.hidden_size if model.moe is not None else model.hidden_size


def window_layers(model: ModelSpec) -> int:
    """Layers whose attention sees a sliding window only."""
    return round(model.layers * model.sliding_window_layer_fraction) if model.sliding_window_tokens else 0


def linear_layers(model: ModelSpec) -> int:
    """Layers with linear attention, which keep a state instead of a KV cache."""
    return model.linear_attention.layers if model.linear_attention is not None else 0


def cached_layers(model: ModelSpec) -> int:
    """Layers with attention, which keep a KV cache."""
    return model.layers - linear_layers(model)


def index_layers(model: ModelSpec) -> int:
    """Layers with an indexer of their own, in a model with sparse attention."""
    sparse = model.sparse_attention
    return 0 if sparse is None else sparse.index_layers or model.layers


def shard(model: ModelSpec, split: int | Parallelism) -> Shard:
    """The widths of one rank of a model split by ``split``: a number of tensor-parallel ranks, or a ``Parallelism``.

    Raises:
        InvalidParallelism: a width, the experts or the layers do not come out even.
    """
    parallelism = split if isinstance(split, Parallelism) else Parallelism(tensor=split)
    for problem in split_problems(model, parallelism):
        raise InvalidParallelism(f"{model.huggingface_id}: {problem.message}", problem.key)
    tensor_parallel, ffn = parallelism.tensor, parallelism.ffn_ranks
    moe, linear, windowed = model.moe, model.linear_attention, model.window_heads
    return Shard(
        parallelism=parallelism,
        heads=model.attention_heads // tensor_parallel,
        kv_heads=max(1, model.kv_heads // tensor_parallel),
        intermediate=model.intermediate_size // ffn if dense_layers(model) else 0,
        expert_intermediate=moe.expert_intermediate_size // parallelism.expert_tensor if moe else 0,
        shared_intermediate=moe.shared_intermediate_size // ffn if moe else 0,
        vocab=-(-model.vocab_size // tensor_parallel),
        experts=-(-moe.experts // parallelism.expert) if moe else 0,
        linear_key_heads=linear.key_heads // tensor_parallel if linear else 0,
        linear_value_heads=linear.value_heads // tensor_parallel if linear else 0,
        window_heads=windowed.attention_heads // tensor_parallel if windowed else 0,
        window_kv_heads=max(1, windowed.kv_heads // tensor_parallel) if windowed else 0,
    )
