"""How one copy of a model is split over accelerators, and which splits a model, an engine and a host allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from hisearch.specs.base import ENGINE_TITLES, EngineName
from hisearch.specs.machines.hardware import HostSpec

if TYPE_CHECKING:
    from hisearch.specs.models.model import ModelSpec


#: Engines whose attention groups have dense FFNs and shared experts of their own: TensorRT-LLM (``shared_tp_size`` of 1
#: with attention DP, ``modeling_deepseekv3.py``), and vLLM, whose data-parallel engines each run a whole model. SGLang
#: gathers all groups' tokens for them (``moe_dense_tp_size``).
OWN_FFN = frozenset({"trtllm", "vllm"})

#: Most ranks of a stage on which SGLang shares prompts of sparse attention: those of a machine.
MOST_SPARSE_RANKS = 8


class Parallelism(NamedTuple):
    """How one copy of a model is split over accelerators.

    A stage of the pipeline has ``attention_data`` groups of ``tensor`` ranks. A group runs attention, embedding and LM
    head on its own sequences. The stage shares FFNs: every rank of it holds a part, and sees the tokens of all groups.
    Dense FFNs and shared experts are split along their width over the stage, or over a group where groups have their
    own. Routed experts are dealt to ``expert`` sets of ranks; each is split along its width over the ranks of its set.

    tensor: ranks of an attention group (TP).
    attention_data: attention groups of a stage (data-parallel attention).
    expert: sets of ranks that hold different experts (EP); divides the ranks of a stage.
    pipeline: stages, each with its share of the layers (PP).
    all_to_all: attention groups share routed experts alone (wide EP): each sends its tokens to the ranks of their
        experts, and keeps dense FFNs and shared experts to itself, split along their width over its own ranks. Copies
        of experts fill the places of ranks that would have fewer than others.
    own_ffn: attention groups keep dense FFNs and shared experts to themselves although they gather tokens for experts.
    decode_context: ranks of an attention group over which each sequence's KV is spread (DCP), in place of copies.
    prefill_context: sets of ``tensor`` ranks of an attention group that each compute a part of a prompt's tokens (PCP).
        Each set holds all of the group's KV.
    """

    tensor: int = 1
    attention_data: int = 1
    expert: int = 1
    pipeline: int = 1
    all_to_all: bool = False
    own_ffn: bool = False
    decode_context: int = 1
    prefill_context: int = 1

    def under(self, engine: str) -> Parallelism:
        """As ``engine`` lays out the FFNs of its attention groups, and of sets of ranks that share prompts."""
        return self._replace(own_ffn=self.attention_data * self.prefill_context > 1 and engine in OWN_FFN)

    @property
    def as_groups(self) -> Parallelism:
        """With an attention group for each set of ranks that share prompts: each has tokens of its own in a step."""
        return self._replace(attention_data=self.attention_data * self.prefill_context, prefill_context=1)

    @property
    def ffn_groups(self) -> int:
        """Attention groups that send their tokens through a dense FFN together."""
        return 1 if self.all_to_all or self.own_ffn else self.attention_data

    @property
    def ffn_ranks(self) -> int:
        """Ranks over which a dense FFN is split."""
        return self.tensor * self.as_groups.ffn_groups if self.prefill_context > 1 else self.tensor * self.ffn_groups

    @property
    def stage_ranks(self) -> int:
        """Ranks of one stage."""
        return self.tensor * self.attention_data * self.prefill_context

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
        return self.tensor * self.prefill_context * self.pipeline

    def __str__(self) -> str:
        """``tensor_parallel 4``, and what else there is, by the keys of a pool."""
        others = {
            "attention_data_parallel": self.attention_data,
            "expert_parallel": self.expert,
            "pipeline_parallel": self.pipeline,
            "decode_context_parallel": self.decode_context,
            "prefill_context_parallel": self.prefill_context,
        }
        return ", ".join([f"tensor_parallel {self.tensor}", *(f"{k} {v}" for k, v in others.items() if v > 1)])

    @property
    def short(self) -> str:
        """``TP 4``, ``TP 4 × PP 2``, ``TP 1 × DP 8, EP 8``: as the field writes it."""
        widths = [f"TP {self.tensor}"]
        widths += [f"DP {self.attention_data}"] if self.attention_data > 1 else []
        widths += [f"PCP {self.prefill_context}"] if self.prefill_context > 1 else []
        widths += [f"PP {self.pipeline}"] if self.pipeline > 1 else []
        parts = [" × ".join(widths)]
        parts += [f"EP {self.expert}"] if self.expert > 1 else []
        parts += [f"DCP {self.decode_context}"] if self.decode_context > 1 else []
        return ", ".join(parts)


def degrees_of(split: Parallelism) -> dict[str, int]:
    """The split as keys of a pool."""
    return {
        "tensor_parallel": split.tensor,
        "pipeline_parallel": split.pipeline,
        "attention_data_parallel": split.attention_data,
        "expert_parallel": split.expert,
        "decode_context_parallel": split.decode_context,
        "prefill_context_parallel": split.prefill_context,
    }


class SplitProblem(NamedTuple):
    """Why a worker cannot be split this way: the pool's key, and a sentence."""

    key: str
    message: str


def split_problems(model: ModelSpec, split: Parallelism) -> Iterator[SplitProblem]:
    """Why ``model`` cannot be split evenly, worst first; empty where it can.

    KV heads may be fewer than the ranks of a group and are then replicated, which needs the ranks to be a multiple of
    them.
    """
    tensor, stage = split.tensor, split.stage_ranks
    if stage % split.expert:
        message = f"expert_parallel {split.expert} does not divide the {stage} ranks of a stage"
        yield SplitProblem("expert_parallel", message)
        return
    if split.expert > 1 and model.moe is None:
        yield SplitProblem("expert_parallel", f"no experts to deal out: expert_parallel {split.expert}")
    if split.pipeline > model.layers:
        yield SplitProblem(
            "pipeline_parallel", f"pipeline_parallel {split.pipeline} exceeds the {model.layers} layers of the model"
        )
    yield from _uneven("tensor_parallel", tensor, {"attention_heads": model.attention_heads})
    if model.attention == "gqa":
        yield from _uneven_kv_heads(tensor, "kv_heads", model.kv_heads)
    if (windowed := model.window_heads) is not None:
        yield from _uneven("tensor_parallel", tensor, {"window_heads.attention_heads": windowed.attention_heads})
        yield from _uneven_kv_heads(tensor, "window_heads.kv_heads", windowed.kv_heads)
    moe, linear = model.moe, model.linear_attention
    # Attention groups share the FFNs: of these the width is that of all groups together.
    key, width = "tensor_parallel", "tensor_parallel"
    if split.attention_data > 1:
        key, width = "attention_data_parallel", "tensor_parallel x attention_data_parallel"
    elif split.prefill_context > 1:
        key, width = "prefill_context_parallel", "tensor_parallel x prefill_context_parallel"
    if moe is None or moe.leading_dense_layers:
        yield from _uneven(key, split.ffn_ranks, {"intermediate_size": model.intermediate_size}, width)
    if moe is not None:
        each = split.expert_tensor
        what = width if split.expert == 1 else f"{width} / expert_parallel"
        yield from _uneven(key, each, {"expert_intermediate_size": moe.expert_intermediate_size}, what)
        yield from _uneven(key, split.ffn_ranks, {"shared_intermediate_size": moe.shared_intermediate_size}, width)
        if not split.all_to_all:
            yield from _uneven("expert_parallel", split.expert, {"experts": moe.experts})
    if (kept := model.compressed_attention) is not None:
        yield from _uneven("tensor_parallel", tensor, {"compressed_attention.output_groups": kept.output_groups})
    if linear is not None:
        heads = {"key_heads": linear.key_heads, "value_heads": linear.value_heads}
        yield from _uneven("tensor_parallel", tensor, {f"linear_attention.{name}": n for name, n in heads.items()})
    if split.decode_context > 1:
        yield from _context_problems(model, tensor, split.decode_context)
    if split.prefill_context > 1:
        yield from _prompt_problems(model, split)


def _prompt_problems(model: ModelSpec, split: Parallelism) -> Iterator[SplitProblem]:
    """Why prompts cannot be spread over sets of ranks, whatever the engine."""
    key = f"prefill_context_parallel {split.prefill_context}"
    for what in (name for name, has in _other_attention(model).items() if has):
        yield SplitProblem("prefill_context_parallel", f"{key} is not simulated for models with {what}")
    for other, degree in (("attention_data", split.attention_data), ("decode_context", split.decode_context)):
        if degree > 1:
            message = f"{key} is not simulated together with {other}_parallel {degree}"
            yield SplitProblem("prefill_context_parallel", message)


def _other_attention(model: ModelSpec) -> dict[str, bool]:
    """Kinds of attention beside a cache of all tokens, and whether the model has them."""
    return {
        "sliding windows": model.sliding_window_tokens > 0,
        "linear attention": model.linear_attention is not None,
        "compressed attention": model.compressed_attention is not None,
        "block-sparse attention": model.block_sparse is not None,
    }


def _context_problems(model: ModelSpec, tensor: int, context: int) -> Iterator[SplitProblem]:
    """Why a sequence's KV cannot be spread over ``context`` ranks of an attention group.

    Ranks that would hold copies of a KV head hold its tokens in turns. Source: vLLM 0.33.0, ``config/parallel.py:
    ParallelConfig._validate_parallel_config``, ``config/model.py: ModelConfig.verify_with_parallel_config``; sliding
    windows: ``v1/core/kv_cache_coordinator.py``.
    """
    key = "decode_context_parallel"
    if tensor % context:
        yield SplitProblem(key, f"{key} {context} does not divide tensor_parallel {tensor}")
    for what in (name for name, has in _other_attention(model).items() if has):
        yield SplitProblem(key, f"{key} {context} is not simulated for models with {what}")
    if model.mla is not None:
        return
    copies = tensor // model.kv_heads
    if context > copies:
        message = f"tensor_parallel {tensor} makes {max(copies, 1)} of each of kv_heads {model.kv_heads}"
        yield SplitProblem(key, f"{key} {context} is more than the copies of a KV head: {message}")
    if (queries := model.attention_heads // model.kv_heads) % context:
        yield SplitProblem(key, f"{key} {context} does not divide the {queries} attention heads of a KV head")


def _uneven_kv_heads(tensor: int, what: str, kv_heads: int) -> Iterator[SplitProblem]:
    if kv_heads % tensor and tensor % kv_heads:
        message = f"tensor_parallel {tensor} neither divides {what} {kv_heads} nor is a multiple of it"
        yield SplitProblem("tensor_parallel", message)


def _uneven(key: str, ranks: int, sizes: dict[str, int], name: str = "") -> Iterator[SplitProblem]:
    """Sizes that ``ranks`` do not divide; ``name``: of the ranks, where it is not the key's."""
    for what, size in sizes.items():
        if size % ranks:
            yield SplitProblem(key, f"{name or key} {ranks} does not divide {what} {size}")


def runs_in_halves(model: ModelSpec) -> bool:
    """Whether SGLang has two-batch overlap for the layers of ``model``, as far as its fields tell.

    It has it for DeepSeek's, Qwen3's experts' and MiMo-V2's (``OperationsStrategy.init_new_tbo`` of
    ``srt/batch_overlap/operations_strategy.py``, 0.5.23; others end the server's start).
    """
    if model.moe is None or model.linear_attention is not None:
        return False
    if model.mla is not None or model.compressed_attention is not None or model.architecture.startswith("mimo_v2"):
        return True
    return _has_layers_of_qwen3_moe(model)


def _has_layers_of_qwen3_moe(model: ModelSpec) -> bool:
    """Whether a model's layers are those of Qwen3 with experts, as far as its fields tell."""
    if model.moe is None or model.mla is not None:
        return False
    shared = model.moe.shared_experts or model.moe.separate_shared
    return not (shared or model.attention_sinks or model.sliding_window_tokens or model.qk_norm_per_layer)


def engine_problem(
    engine: EngineName, split: Parallelism, model: ModelSpec | None = None, *, halves: bool = False
) -> SplitProblem | None:
    """Why the engine cannot be started with the split (of ``model``, where it is known); None where it can.

    halves: steps run as two batches (SGLang's two-batch overlap).

    vLLM deals experts to all ranks of a stage or to none (``--enable-expert-parallel``), and its data-parallel engines
    share nothing but experts; TensorRT-LLM's attention-DP has one rank to a group (``enable_attention_dp``).
    """
    title = ENGINE_TITLES[engine]
    if halves and model is not None and not runs_in_halves(model):
        message = f"{title} has no two-batch overlap for layers of {model.huggingface_id}: its server does not start"
        return SplitProblem("engine.experts.two_batch_overlap", message)
    if engine == "vllm" and split.attention_data > 1 and model is not None and model.moe is None:
        message = f"{title}'s data-parallel engines of a model without experts share nothing: use replicas"
        return SplitProblem("attention_data_parallel", message)
    if engine == "vllm" and split.expert not in (1, split.stage_ranks):
        message = f"{title} deals experts to all {split.stage_ranks} ranks of a stage or to none, not to {split.expert}"
        return SplitProblem("expert_parallel", message)
    if engine == "trtllm" and split.attention_data > 1 and split.tensor > 1:
        message = (
            f"{title}'s attention groups have one rank each: attention_data_parallel {split.attention_data} needs "
            f"tensor_parallel 1, not {split.tensor}"
        )
        return SplitProblem("attention_data_parallel", message)
    if split.decode_context > 1:
        key = "decode_context_parallel"
        if engine == "trtllm":
            return SplitProblem(key, f"{key} {split.decode_context} is not simulated under {title}")
        if engine == "sglang" and model is not None and (model.mla is None or model.sparse_attention is not None):
            kind = "grouped-query" if model.mla is None else "sparse"
            message = f"{key} {split.decode_context} is not simulated for {kind} attention under {title}"
            return SplitProblem(key, message)
    return _prompt_problem(engine, split, model) if split.prefill_context > 1 else None


def _prompt_problem(engine: EngineName, split: Parallelism, model: ModelSpec | None) -> SplitProblem | None:
    """Why the engine cannot share prompts among sets of ranks.

    vLLM 0.33.0, ``v1/worker/gpu/pcp_manager.py: PCPManager.validate_config``: MLA, without images. SGLang 0.5.23:
    sparse attention on at most 8 ranks of a stage (``arg_groups/model_overrides/deepseek_v2.py``), and Qwen3's experts
    (``models/qwen3_moe.py``). Its other MLA models send tokens to experts by DeepEP there, which is not simulated.
    """
    key, title = "prefill_context_parallel", ENGINE_TITLES[engine]
    what = f"{key} {split.prefill_context}"
    if engine == "trtllm":
        return SplitProblem(key, f"{what} is not simulated under {title}")
    if split.all_to_all:
        return SplitProblem(key, f"{what} is not simulated with all_to_all; leave engine.experts.exchange out")
    if model is None:
        return None
    if engine == "vllm":
        if model.mla is None:
            return SplitProblem(key, f"{title} shares prompts of models with MLA alone: {what} needs 1")
        if model.towers is not None:
            return SplitProblem(key, f"{title} does not share prompts of models that take images: {what} needs 1")
        return None
    if model.sparse_attention is not None:
        if split.stage_ranks > MOST_SPARSE_RANKS:
            message = f"{title} shares prompts of sparse attention on at most {MOST_SPARSE_RANKS} ranks"
            return SplitProblem(key, f"{message} of a stage, not on {split.stage_ranks}")
        return None
    if model.mla is not None:
        return SplitProblem(key, f"{what} is not simulated under {title} for MLA without sparse attention")
    if not _has_layers_of_qwen3_moe(model):
        return SplitProblem(key, f"{what} is simulated under {title} for sparse attention and for Qwen3 with experts")
    return None


def fits_hosts(stage_ranks: int, slots: int, reach: int) -> bool:
    """Whether a stage lies in one host of ``slots`` accelerators, or fills hosts that peer links join."""
    return stage_ranks <= slots or (stage_ranks <= reach and stage_ranks % slots == 0)


def slots_problem(split: Parallelism, host_name: str, host: HostSpec) -> SplitProblem | None:
    """Why a stage does not fit into its host, or into whole hosts that peer links join; None where it does.

    Stages may lie in different hosts.
    """
    slots = host.accelerators
    if fits_hosts(split.stage_ranks, slots, host.reach):
        return None
    if split.attention_data * split.prefill_context == 1:
        ranks, key = f"tensor_parallel {split.tensor}", "tensor_parallel"
    else:
        key = "attention_data_parallel" if split.attention_data > 1 else "prefill_context_parallel"
        ranks = f"a stage of {split.stage_ranks} ranks"
    if split.stage_ranks <= host.reach:
        return SplitProblem(key, f"{ranks} fills no whole hosts of {slots} accelerator slots, {host_name}")
    if host.reach > slots:
        return SplitProblem(key, f"{ranks} exceeds the {host.reach} accelerators that peer links of {host_name} join")
    return SplitProblem(key, f"{ranks} exceeds the {slots} accelerator slots of {host_name}")


def workers_per_node(split: Parallelism, host: HostSpec | None) -> int:
    """Workers that a full host carries; 1 where a worker fills or exceeds it, and where the host is not known."""
    return max(host.accelerators // split.ranks, 1) if host is not None else 1


def scheduler_ranks(split: Parallelism) -> int:
    """Ranks that move the KV of one scheduler at once: of an attention group, or of all stages of a pipeline.

    Of sets of ranks that share prompts, the first alone sends: vLLM 0.33.0, ``nixl/pull_worker.py``; SGLang 0.5.23,
    ``disaggregation/common/conn.py`` (``is_dummy_cp_rank``).
    """
    return split.tensor * split.pipeline


def nodes_per_worker(split: Parallelism, host: HostSpec | None) -> int:
    """Hosts that one worker takes; 1 where the host is not known.

    Stages lie whole, one after the other; one that is wider than a host fills as many as it needs.
    """
    if host is None:
        return 1
    if split.stage_ranks > host.accelerators:
        return split.pipeline * -(-split.stage_ranks // host.accelerators)
    return -(-split.pipeline // (host.accelerators // split.stage_ranks))


def nodes_used(split: Parallelism, workers: int, host: HostSpec | None) -> int:
    """Hosts that ``workers`` workers take, filling one after the other."""
    if nodes_per_worker(split, host) > 1:
        return workers * nodes_per_worker(split, host)
    return -(-workers // workers_per_node(split, host))
