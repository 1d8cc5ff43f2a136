"""Whether an engine can load a 16-bit checkpoint as fp8: bytes on the accelerator before the weights are quantised.

vLLM 0.19.1    quantises layer by layer: weights are created without memory and made when their layer is complete
               (``Fp8OnlineLinearMethod`` and ``Fp8OnlineMoEMethod`` in ``model_executor/layers/quantization/fp8.py``;
               vLLM pull request 31914 measures the peak).
SGLang 0.5.9   loads every layer in the checkpoint's format, then quantises (``load_weights_and_postprocess`` in
               ``model_loader/loader.py``, ``create_weights`` in ``layers/quantization/fp8.py``; SGLang pull request
               17945 says so). Its layered loader quantises with torchao alone.
"""

from __future__ import annotations

from typing import NamedTuple

from hisearch.latency.device_memory.constants import GIB
from hisearch.latency.device_memory.plan import taken_bytes, usable_bytes
from hisearch.latency.parameters import WIDE_DTYPES, weight_bytes_per_rank
from hisearch.latency.sharding import Parallelism, parallelism_of
from hisearch.specs.base import DType, EngineName
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.models.model import ModelSpec

#: Engines that hold the whole checkpoint in its own format before they quantise it.
LOADS_IN_FULL: frozenset[EngineName] = frozenset({"sglang"})


class FullLoad(NamedTuple):
    """Bytes that a rank holds before its weights are quantised, and the bytes available for them."""

    weights_bytes: float
    available_bytes: float

    @property
    def fits(self) -> bool:
        """True where the checkpoint can be loaded at all."""
        return self.weights_bytes <= self.available_bytes

    def sentence(self, checkpoint: DType, accelerator_name: str) -> str:
        """A sentence for people, without a full stop."""
        return (
            f"SGLang loads {checkpoint} weights in full before it quantises them to fp8: "
            f"{self.weights_bytes / GIB:.1f} GiB on each rank, where {accelerator_name} offers "
            f"{self.available_bytes / GIB:.1f} GiB"
        )


def full_load(
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    *,
    engine: EngineName,
    tensor_parallel: int,
    parallelism: Parallelism | None = None,
    weight_dtype: DType | None,
) -> FullLoad | None:
    """Memory to quantise a 16-bit checkpoint to fp8; None where nothing is quantised, or layer by layer.

    Raises:
        InvalidParallelism: the model cannot be split over ``tensor_parallel`` ranks.
    """
    # Both engines turn all unquantised formats into fp8 while loading.
    if weight_dtype != "fp8" or model.weight_dtype not in WIDE_DTYPES or engine not in LOADS_IN_FULL:
        return None
    split = parallelism_of(tensor_parallel, parallelism)
    weights = weight_bytes_per_rank(model, split, model.weight_dtype)
    return FullLoad(weights, usable_bytes(accelerator) - taken_bytes(engine, split))
