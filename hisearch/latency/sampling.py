"""Sampling bounded by top-p or top-k, where an engine sorts all logits for it.

vLLM before 0.17 sorts the logits of every sequence over the whole vocabulary by PyTorch (``topk_topp_sampler.py``).
Later versions, SGLang and TensorRT-LLM have kernels that do not sort. A sort of many rows is a radix sort of pairs of a
float and a long: four passes over the key and one over the row, each reading and writing 12 bytes, a histogram before
each, then softmax, running sum, mask and scatter over what was sorted.

    seconds of a sequence = vocabulary * SORT_BYTES / (memory bandwidth * BANDWIDTH)

Every tensor-parallel rank does it over all logits.
"""

from __future__ import annotations

from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.versions import precedes

#: Bytes moved for each logit: 5 passes of 24, their histograms 20, what follows 60. Plausible: 120 to 280.
SORT_BYTES = 200.0
#: Share of the memory bandwidth that such passes attain: that of elementwise kernels in the profile ``roofline``.
BANDWIDTH = 0.7
#: Releases of vLLM that sort are those before this one.
SORTS_BEFORE = "0.17.0"
#: Publishers' families whose generation_config.json bounds sampling by top-p or top-k, which engines take where a
#: request states nothing else.
BOUNDED = ("llama-2-", "llama-3", "meta-llama-3", "llama-4", "qwen2", "qwen3", "minimax-m2", "deepseek-", "glm-")


def bounded(model: ModelSpec) -> bool:
    """Whether the model's own generation_config.json bounds sampling by top-p or top-k."""
    if model.bounded_sampling is not None:
        return model.bounded_sampling
    return model.huggingface_id.rsplit("/", 1)[-1].lower().startswith(BOUNDED)


def sort_s(model: ModelSpec, accelerator: AcceleratorSpec, engine: EngineSpec) -> float:
    """Seconds that a step takes to sort the logits of one sequence; 0 where nothing is sorted."""
    asked = bounded(model) if engine.top_p is None else engine.top_p
    if not asked or engine.name != "vllm" or not precedes(engine.version, SORTS_BEFORE):
        return 0.0
    return model.vocab_size * SORT_BYTES / (accelerator.memory_bandwidth_bytes_per_s * BANDWIDTH)
