"""A pool's section ``lora``, compiled: bytes of a slot, seconds of its copies, what adapters add to a step.

Notation
    t ranks of a worker (tensor parallel), r rank of the slots, h hidden size, b bytes of an element
    A matrix of m outputs has factors A (r x inputs) and B (m x r). Of q, k, v, gate and up each rank has all of A and
    its part of B; of o and down its part of A and all of B. So it holds r (h + m / t) elements of each matrix, and as
    many of o and down by their inputs.

A step with adapters (kernels "shrink" by A and "expand" by B, for each group of matrices that share their input):

    step_s     2 kernels for each of the groups qkv, o, gate_up, down in each layer, KERNEL_S each
    adapter_s  reads the factors of an adapter
    token_s    reads inputs, writes and reads what A makes of them in 32 bits, reads and writes outputs; 2 r (inputs +
               outputs) operations

The terms are added, as if kernels of few tokens took their time beside the reading.
vLLM captures other CUDA graphs for batches without adapters (``cudagraph_specialize_lora``), which take no longer.
SGLang's decode graphs always have the kernels.

Against a measurement: vLLM 0.6 took 28 s for 96 prompts of ShareGPT without an adapter, and 35 s with one of rank 64
for all (Llama-2-7B, A100-40GB, vllm-project/vllm#10062), 25 % more. The law adds 9 % to a decode step of 48 requests
there (``tests/simulate/test_lora_costs.py``): too little for that release by more than half. No public measurement of
a newer release was found.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hisearch.hardware.host_path import to_host
from hisearch.hardware.power import memory_power_share, worker_dynamic_w
from hisearch.latency.device_memory.plan import MemoryPlan
from hisearch.latency.sharding import InvalidParallelism, dense_layers, shard
from hisearch.simulate.plans.lora_plan import LoraPlan
from hisearch.specs.base import DTYPE_BYTES, rate_dtype
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.lora import OVERLAPPED_ADAPTERS, LoraSpec, slot_rank
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec, MediumSpec
from hisearch.specs.models.model import ModelSpec

#: Seconds of a kernel that applies adapters to few tokens, within a CUDA graph. Punica (arXiv 2310.18547) adds 2 ms a
#: token to 7B on A100: 32 layers, 7 matrices, 2 kernels each, 4.5 us a kernel. Plausible: 3 to 8 us.
KERNEL_S = 4.5e-6
#: Shares of peak bandwidth and arithmetic that such kernels attain. Assumed; plausible: 0.5 to 0.9, and 0.1 to 0.5.
BANDWIDTH_SHARE, FLOPS_SHARE = 0.7, 0.3
#: Matrices that share their input and are one linear layer in both engines.
GROUPS = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
_FLOAT32_BYTES = 4.0


def matrices_of(model: ModelSpec, lora: LoraSpec, tensor_parallel: int) -> list[list[tuple[int, int]]]:
    """Widths (inputs, outputs) on one rank of the matrices that adapters change, by group, of one layer.

    Raises:
        InvalidParallelism: a target that the model does not have.
    """
    if model.attention != "gqa":
        message = f"adapters of {model.attention} attention are not simulated ({model.huggingface_id})"
        raise InvalidParallelism(message, "lora")
    feed_forward = [target for target in lora.targets if target in ("gate", "up", "down")]
    if feed_forward and dense_layers(model) < model.layers:
        message = (
            f"{', '.join(feed_forward)}: not every layer of {model.huggingface_id} has a dense feed-forward, and "
            "adapters of experts are not simulated; give targets: [q, k, v, o]"
        )
        raise InvalidParallelism(message, "lora.targets")
    local, hidden, head = shard(model, tensor_parallel), model.hidden_size, model.head_dim
    widths = {
        "q": (hidden, local.heads * head), "k": (hidden, local.kv_heads * head), "v": (hidden, local.kv_heads * head),
        "o": (local.heads * head, hidden), "gate": (hidden, local.intermediate), "up": (hidden, local.intermediate),
        "down": (local.intermediate, hidden),
    }  # fmt: skip
    return [[widths[name] for name in group] for group in GROUPS if set(group) & set(lora.targets)]


def slot_bytes(pool: PoolSpec, model: ModelSpec) -> float:
    """Bytes of a slot on one rank; 0 for a pool without adapters.

    Raises:
        InvalidParallelism: see ``matrices_of``.
    """
    lora = pool.lora
    if lora is None:
        return 0.0
    groups = matrices_of(model, lora, pool.tensor_parallel)
    per_rank = sum(inputs + outputs for group in groups for inputs, outputs in group) * model.layers
    return float(per_rank * slot_rank(pool.engine.name, lora.rank) * DTYPE_BYTES[lora.dtype])


def plan_lora(
    pool: PoolSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
    media: Mapping[str, MediumSpec],
) -> LoraPlan | None:
    """The plan of the pool's section ``lora``; None without one.

    Raises:
        InvalidParallelism: a target that the model does not have, or no disk from which vLLM could read adapters; with
            the key.
    """
    lora = pool.lora
    if lora is None:
        return None
    vllm = pool.engine.name == "vllm"
    disk = media.get(host.nvme) if host is not None and host.nvme is not None else None
    if vllm and disk is None:
        message = "vLLM reads adapters from the disks of its host, which has none; name a host with nvme"
        raise InvalidParallelism(message, "lora.max_cpu_loras")
    groups = matrices_of(model, lora, pool.tensor_parallel)
    rank, element = slot_rank(pool.engine.name, lora.rank), DTYPE_BYTES[lora.dtype]
    size = slot_bytes(pool, model)
    # What is copied and read has the adapter's own rank.
    own = size * lora.rank / rank
    link = to_host(accelerator.host_link, host.shared if host is not None else (), pool.tensor_parallel)
    whole = slot_bytes(pool.model_copy(update={"tensor_parallel": 1}), model) * lora.rank / rank
    read_latency_s = 0.0 if disk is None else disk.latency_s
    read_s = 0.0 if disk is None else read_latency_s + whole / disk.read_bytes_per_s
    moved = model.layers * sum(
        len(group) * group[0][0] * element + sum(2 * rank * _FLOAT32_BYTES + 2 * out * element for _, out in group)
        for group in groups
    )
    flops = 2.0 * rank * model.layers * sum(inputs + outputs for group in groups for inputs, outputs in group)
    bandwidth = accelerator.memory_bandwidth_bytes_per_s * BANDWIDTH_SHARE
    adapter_s, moved_s = size / bandwidth, moved / bandwidth
    compute_s = flops / (accelerator.peak_flops[rate_dtype(lora.dtype)] * FLOPS_SHARE)
    compute_w = worker_dynamic_w(accelerator, pool.tensor_parallel)
    read_w = compute_w * memory_power_share(accelerator)
    kernels_s = 2 * len(groups) * model.layers * KERNEL_S
    return LoraPlan(
        lora.max_loras,
        rank=lora.rank,
        most_adapters=OVERLAPPED_ADAPTERS * lora.max_loras if lora.overlap_loading else 0,
        copies=(lora.max_cpu_loras or lora.max_loras) if vllm else 0,
        base_slot=not vllm,
        fifo=lora.eviction == "fifo",
        overlaps=lora.overlap_loading,
        drain_wait_s=lora.drain_wait_s,
        load_latency_s=link.latency_s,
        load_s=link.latency_s + own / link.bandwidth_bytes_per_s,
        read_latency_s=read_latency_s,
        read_s=read_s,
        base_s=0.0 if vllm else kernels_s,
        step_s=kernels_s,
        adapter_s=adapter_s,
        token_s=moved_s + compute_s,
        adapter_j=adapter_s * read_w,
        token_j=moved_s * read_w + compute_s * compute_w,
        slot_bytes=size,
    )


def without_slots(memory: MemoryPlan, pool: PoolSpec, model: ModelSpec) -> MemoryPlan:
    """Memory of a worker less its slots for adapters, which both engines take before they size the KV pool.

    KV gives whole pages.

    Raises:
        InvalidParallelism: KV in several groups or pools, no memory left for KV, or see ``matrices_of``; with the key.
    """
    if pool.lora is None:
        return memory
    if memory.kv_groups is not None or memory.window_pools is not None or memory.state_pools is not None:
        message = f"adapters are not simulated where {pool.engine.name} keeps KV in several groups or pools"
        raise InvalidParallelism(f"{message} ({model.huggingface_id})", "lora")
    taken, page = slot_bytes(pool, model) * pool.lora.max_loras, pool.engine.page_size
    pages = math.ceil(taken / (memory.kv_bytes_per_token_per_rank * page))
    if pages * page >= memory.kv_capacity_tokens:
        message = (
            f"slots for adapters take {taken / 2**30:.1f} GiB on each rank, and no KV is left; lower max_loras or rank"
        )
        raise InvalidParallelism(message, "lora.max_loras")
    return replace(memory, kv_capacity_tokens=memory.kv_capacity_tokens - pages * page)
