"""How a model is split over ranks, and what one rank holds: heads, KV heads, FFN widths, experts, layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hisearch.specs.model import ModelSpec


class InvalidParallelism(ValueError):  # noqa: N818
    """A model cannot be split over this many ranks."""


class Parallelism(NamedTuple):
    """How one copy of a model is split over accelerators.

    A stage of the pipeline has ``attention_data`` groups of ``tensor`` ranks. A group runs attention, embedding and LM
    head on sequences of its own; FFNs are shared by the stage: every rank of it holds a part, and sees the tokens of
    all groups. Dense FFNs and shared experts are split along their width over the stage; routed experts are dealt to
    ``expert`` sets of ranks, and each is split along its width over the ranks of its set.

    tensor: ranks of an attention group (TP).
    attention_data: attention groups of a stage (data-parallel attention).
    expert: sets of ranks that hold different experts (EP); divides the ranks of a stage.
    pipeline: stages, each with its share of the layers (PP).
    """

    tensor: int = 1
    attention_data: int = 1
    expert: int = 1
    pipeline: int = 1

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.tensor * self.attention_data

    @property
    def expert_tensor(self) -> int:
        """Ranks that share one expert's width."""
        return self.stage_ranks // self.expert

    @property
    def ranks(self) -> int:
        """Accelerators of the whole copy."""
        return self.stage_ranks * self.pipeline

    @property
    def group_ranks(self) -> int:
        """Accelerators that one attention group stands for, in all stages."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        """``tensor_parallel 4``, and what else there is."""
        others = {"attention_data": self.attention_data, "expert": self.expert, "pipeline": self.pipeline}
        return ", ".join([f"tensor_parallel {self.tensor}", *(f"{k} {v}" for k, v in others.items() if v > 1)])


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

    experts: routed experts of a layer that the rank holds (part of).
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


def dense_layers(model: ModelSpec) -> int:
    """Layers with a dense FFN."""
    return model.layers if model.moe is None else min(model.moe.leading_dense_layers, model.layers)


def moe_layers(model: ModelSpec) -> int:
    """Layers with routed experts."""
    return model.layers - dense_layers(model)


def window_layers(model: ModelSpec) -> int:
    """Layers whose attention sees a sliding window only."""
    return round(model.layers * model.sliding_window_layer_fraction) if model.sliding_window_tokens else 0


def linear_layers(model: ModelSpec) -> int:
    """Layers with linear attention, which keep a state in place of a KV cache."""
    return model.linear_attention.layers if model.linear_attention is not None else 0


def shard(model: ModelSpec, split: int | Parallelism) -> Shard:
    """The widths of one rank of a model that is split over so many tensor-parallel ranks, or as ``split`` says.

    Raises:
        InvalidParallelism: a width, the experts or the layers do not come out even.
    """
    parallelism = split if isinstance(split, Parallelism) else Parallelism(tensor=split)
    tensor_parallel, stage = parallelism.tensor, parallelism.stage_ranks
    name = model.huggingface_id
    if stage % parallelism.expert:
        raise InvalidParallelism(f"{name}: expert {parallelism.expert} does not divide the {stage} ranks of a stage")
    if parallelism.expert > 1 and model.moe is None:
        raise InvalidParallelism(f"{name} has no experts to deal out: expert {parallelism.expert}")
    if parallelism.pipeline > model.layers:
        raise InvalidParallelism(f"{name}: pipeline {parallelism.pipeline} exceeds {model.layers} layers")
    _divide(name, "attention_heads", model.attention_heads, tensor_parallel)
    if model.attention == "gqa" and model.kv_heads % tensor_parallel and tensor_parallel % model.kv_heads:
        raise InvalidParallelism(
            f"{name}: tensor_parallel {tensor_parallel} neither divides kv_heads {model.kv_heads} "
            "nor is a multiple of it"
        )
    moe, linear = model.moe, model.linear_attention
    return Shard(
        parallelism=parallelism,
        heads=model.attention_heads // tensor_parallel,
        kv_heads=max(1, model.kv_heads // tensor_parallel),
        intermediate=(_divide(name, "intermediate_size", model.intermediate_size, stage) if dense_layers(model) else 0),
        expert_intermediate=(
            _divide(name, "expert_intermediate_size", moe.expert_intermediate_size, parallelism.expert_tensor)
            if moe
            else 0
        ),
        shared_intermediate=(
            _divide(name, "shared_intermediate_size", moe.shared_intermediate_size, stage) if moe else 0
        ),
        vocab=-(-model.vocab_size // tensor_parallel),
        experts=_divide(name, "experts", moe.experts, parallelism.expert, "expert") if moe else 0,
        linear_key_heads=(
            _divide(name, "linear_attention.key_heads", linear.key_heads, tensor_parallel) if linear else 0
        ),
        linear_value_heads=(
            _divide(name, "linear_attention.value_heads", linear.value_heads, tensor_parallel) if linear else 0
        ),
    )


def _divide(name: str, what: str, size: int, ranks: int, key: str = "tensor_parallel") -> int:
    if size % ranks:
        raise InvalidParallelism(f"{name}: {key} {ranks} does not divide {what} {size}")
    return size // ranks
