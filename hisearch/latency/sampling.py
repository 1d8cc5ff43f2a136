"""Cost of top-p or top-k sampling where an engine sorts all logits.

vLLM before 0.17 sorts every sequence's logits over the whole vocabulary with PyTorch (``topk_topp_sampler.py``). Later
versions, SGLang and TensorRT-LLM have kernels that do not sort. PyTorch sorts many rows by a radix sort of pairs of a
float and a long: four passes over the key and one over the row. Each pass reads and writes 12 bytes, after a histogram.
Softmax, running sum, mask and scatter over the sorted values follow.

    seconds of a sequence = vocabulary * SORT_BYTES / (memory bandwidth * BANDWIDTH)

Every tensor-parallel rank does it over all logits.
"""

from __future__ import annotations

from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.versions import precedes

#: Bytes moved per logit: 5 passes of 24, their histograms 20, later operations 60. Plausible: 120 to 280.
SORT_BYTES = 200.0
#: Share of the memory bandwidth that such passes attain: that of elementwise kernels in the profile ``roofline``.
BANDWIDTH = 0.7
#: First release of vLLM that does not sort.
SORTS_BEFORE = "0.17.0"
#: Model families whose generation_config.json sets top-p or top-k. Engines use it for requests that state neither.
BOUNDED = ("llama-2-", "llama-3", "meta-llama-3", "llama-4", "qwen2", "qwen3", "minimax-m2", "deepseek-", "glm-")


def bounded(model: ModelSpec) -> bool:
    """Whether the model's generation_config.json sets top-p or top-k."""
    if model.bounded_sampling is not None:
        return model.bounded_sampling
    return model.huggingface_id.rsplit("/", 1)[-1].lower().startswith(BOUNDED)


def sort_s(model: ModelSpec, accelerator: AcceleratorSpec, engine: EngineSpec) -> float:
    """Seconds of a step to sort the logits of one sequence; 0 where nothing is sorted."""
    is_bounded = bounded(model) if engine.top_p is None else engine.top_p
    if not is_bounded or engine.name != "vllm" or not precedes(engine.version, SORTS_BEFORE):
        return 0.0
    return model.vocab_size * SORT_BYTES / (accelerator.memory_bandwidth_bytes_per_s * BANDWIDTH)
