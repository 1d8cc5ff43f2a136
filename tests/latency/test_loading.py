"""What an engine holds while it quantises a 16-bit checkpoint."""

from __future__ import annotations

import pytest

from hisearch.latency.device_memory.loading import full_load
from hisearch.latency.device_memory.plan import GIB
from hisearch.latency.parameters import weight_bytes_per_rank
from hisearch.specs.base import DType, EngineName
from hisearch.specs.documents.catalogue import Catalogue

MODEL = Catalogue().get("Model", "qwen3-32b").spec
L40S = Catalogue().get("Accelerator", "l40s").spec


def test_sglang_holds_all_of_it() -> None:
    for ranks, fits in ((1, False), (2, True)):
        held = full_load(MODEL, L40S, engine="sglang", tensor_parallel=ranks, weight_dtype="fp8")
        assert held is not None
        assert held.weights_bytes == weight_bytes_per_rank(MODEL, ranks, "bf16")
        assert 40 * GIB < held.available_bytes < L40S.memory_bytes
        assert held.fits is fits


@pytest.mark.parametrize(("engine", "weight_dtype"), [("vllm", "fp8"), ("sglang", "bf16"), ("sglang", None)])
def test_others_do_not(engine: EngineName, weight_dtype: DType | None) -> None:
    assert full_load(MODEL, L40S, engine=engine, tensor_parallel=1, weight_dtype=weight_dtype) is None


def test_nor_is_an_fp8_checkpoint_quantised() -> None:
    stored = MODEL.model_copy(update={"weight_dtype": "fp8"})
    assert full_load(stored, L40S, engine="sglang", tensor_parallel=1, weight_dtype="fp8") is None
