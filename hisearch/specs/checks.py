"""Whether parts of a study go together, judged without simulating."""

from __future__ import annotations

from itertools import pairwise

from hisearch.specs.base import DType, rate_dtype
from hisearch.specs.hardware import AcceleratorSpec, HostSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.slo import SloSpec

_GIB = 1024.0**3


def tensor_parallel_problem(model: ModelSpec, tensor_parallel: int) -> str:
    """Why ``model`` cannot be split over ``tensor_parallel`` accelerators; "" where it can.

    Heads and FFN widths must divide evenly. KV heads may also be fewer than the accelerators and are then replicated,
    which needs ``tensor_parallel`` to be a multiple of them.
    """
    if model.attention_heads % tensor_parallel:
        return f"tensor_parallel {tensor_parallel} does not divide {model.attention_heads} attention heads"
    if model.mla is None and model.kv_heads % tensor_parallel and tensor_parallel % model.kv_heads:
        return f"tensor_parallel {tensor_parallel} neither divides {model.kv_heads} KV heads nor is a multiple of them"
    moe = model.moe
    widths = {"FFN": model.intermediate_size if moe is None or moe.leading_dense_layers else 0}
    if moe is not None:
        widths |= {"experts' FFN": moe.expert_intermediate_size, "shared experts' FFN": moe.shared_intermediate_size}
    for what, width in widths.items():
        if width % tensor_parallel:
            return f"tensor_parallel {tensor_parallel} does not divide the {what} width {width}"
    linear = model.linear_attention
    if linear is not None and linear.key_heads % tensor_parallel:
        return f"tensor_parallel {tensor_parallel} does not divide {linear.key_heads} heads of linear attention"
    if linear is not None and linear.value_heads % tensor_parallel:
        return f"tensor_parallel {tensor_parallel} does not divide {linear.value_heads} value heads of linear attention"
    return ""


def dtype_problem(name: str, accelerator: AcceleratorSpec, dtype: DType) -> str:
    """Why weights of ``dtype`` do not run at their own rate on the accelerator called ``name``; "" where they do."""
    if rate_dtype(dtype) in accelerator.peak_flops:
        return ""
    return f"{name} has no {dtype} rate; known: {', '.join(accelerator.peak_flops)}"


def slots_problem(tensor_parallel: int, host_name: str, host: HostSpec) -> str:
    """Why a worker does not fit into its host; "" where it does."""
    if tensor_parallel <= host.accelerators:
        return ""
    return f"tensor_parallel {tensor_parallel} exceeds the {host.accelerators} accelerator slots of {host_name}"


def workers_per_node(tensor_parallel: int, host: HostSpec | None) -> int:
    """Workers that a full host carries; 1 where the host is not known."""
    return max(host.accelerators // tensor_parallel, 1) if host is not None else 1


def slo_warnings(slo: SloSpec) -> list[str]:
    """Terms that say nothing, because another term is stricter."""
    found = []
    for metric in sorted({term.metric for term in slo.terms}):
        terms = sorted((term for term in slo.terms if term.metric == metric), key=lambda term: term.percentile)
        for low, high in pairwise(terms):
            if high.at_most_s <= low.at_most_s:
                found.append(
                    f"{low.label} <= {low.at_most_s:g} s says nothing: {high.label} <= {high.at_most_s:g} s is stricter"
                )
    ends = {term.percentile: term.at_most_s for term in slo.terms if term.metric == "e2e_s"}
    found += [
        f"{term.label} <= {term.at_most_s:g} s says nothing: the whole answer must be there by then"
        for term in slo.terms
        if term.metric == "ttft_s" and ends.get(term.percentile, float("inf")) <= term.at_most_s
    ]
    return found
