"""Speed of accelerators' hosts, by operator tables of modules that a host launches operator by operator."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

#: Tables of modules that are launched operator by operator, and the smallest of whose sizes the host binds.
LAUNCHED_MODULES: dict[str, tuple[str, ...]] = {
    "sglang": (
        "mla/sglang/0.5.10/wideep_context_mla_perf.parquet",
        "moe/sglang/0.5.10/wideep_context_moe_perf.parquet",
        "sparse_attention/sglang/0.5.14/dsa_context_module_perf.parquet",
        "msa/sglang/0.5.16/msa_context_module_perf.parquet",
    ),
    "trtllm": ("msa/trtllm/1.3.0rc23/msa_context_module_perf.parquet",),
    "vllm": ("sparse_attention/vllm/0.24.0/dsa_context_module_perf.parquet",),
}
#: Boards with a Grace, and those with the same accelerator beside x86 processors.
PAIRS = (("gb200", "b200_sxm"), ("gb300", "b300_sxm"))
#: Columns of a table that are not sizes.
NOT_SIZES = frozenset({"latency", "device", "power", "power_limit", "kernel_source", "framework", "version", "op_name"})


def grace_scale(data: Path, engine: str) -> float:
    """Time of an engine's modules on boards with a Grace over that on x86 boards: geometric mean over both.

    Each module counts with the median of the fifth of its sizes that take least.

    Args:
        data: aiconfigurator-core's ``systems/data``.
        engine: whose modules.
    """
    import pandas as pd

    logs = []
    for systems, module in itertools.product(PAIRS, LAUNCHED_MODULES[engine]):
        grace, x86 = (pd.read_parquet(data / system / module) for system in systems)
        sizes = [name for name in grace if name not in NOT_SIZES]
        both = grace.drop_duplicates(sizes).merge(x86.drop_duplicates(sizes), on=sizes)
        least = both[both.latency_y <= both.latency_y.quantile(0.2)]
        logs.append(math.log((least.latency_x / least.latency_y).median()))
    return math.exp(sum(logs) / len(logs))
