"""Foundations of every YAML kind: the strict base model and the field types they share.

Numbers carry their unit in the field's name (``_s``, ``_bytes``, ``_usd_per_hour``); nothing is parsed out of strings.
"""

from __future__ import annotations

import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hisearch.specs.errors import KeyedError

API_VERSION = "hisearch/v1"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
#: Largest seed: random streams of the kernels take 64 bits.
MAX_SEED = 2**63 - 1
Seed = Annotated[int, Field(ge=0, le=MAX_SEED)]

#: Numeric formats of weights, activations and KV entries. ``fp4`` and ``nvfp4`` have the same 4-bit elements (E2M1) and
#: the same arithmetic; they differ in the scales of weights, see ``WEIGHT_SCALE_BYTES``.
DType = Literal["fp32", "bf16", "fp16", "fp8", "int8", "fp4", "nvfp4", "int4"]

#: Bytes of one element, scales not included.
DTYPE_BYTES: dict[str, float] = {
    "fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "nvfp4": 0.5, "int4": 0.5,
}  # fmt: skip

#: Bytes of scales for each element of a weight. fp4 is MXFP4: an 8-bit scale per 32 elements (OCP Microscaling Formats
#: specification 1.0). nvfp4 is NVFP4: an 8-bit scale per 16 elements, and one of 32 bits per tensor, which is nothing
#: (NVIDIA, "Introducing NVFP4 for Efficient and Accurate Low-Precision Inference", 2025): 6 % more than MXFP4.
#: int4 is GPTQ or AWQ: a 16-bit scale and a 4-bit zero per 128 elements. Scales of fp8 and int8, per channel or
#: per block of 128 x 128, are nothing.
WEIGHT_SCALE_BYTES: dict[str, float] = {"fp4": 1.0 / 32, "nvfp4": 1.0 / 16, "int4": 2.5 / 128}

#: Bytes of scales for each element of the KV cache: SGLang's fp4 cache keeps a byte per 16 elements
#: (``MHATokenToKVPoolFP4`` and ``MLATokenToKVPoolFP4`` in its ``memory_pool.py``); fp8 caches have one scale per layer.
KV_SCALE_BYTES: dict[str, float] = {"fp4": 1.0 / 16}

#: Formats that are multiplied at another one's rate.
_RATE_OF: dict[DType, DType] = {"nvfp4": "fp4"}


def rate_dtype(dtype: DType) -> DType:
    """The format by whose rate in ``peak_flops`` operands of ``dtype`` are multiplied."""
    return _RATE_OF.get(dtype, dtype)


#: Serving engines whose step rule is simulated.
EngineName = Literal["vllm", "sglang", "trtllm"]

#: Engines as people write them.
ENGINE_TITLES: dict[EngineName, str] = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}

#: How a figure is known (law L8).
Evidence = Literal["measured", "fitted", "published", "transferred", "assumed"]


class Strict(BaseModel):
    """An immutable model that refuses unknown keys and infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    #: Removed keys -> what to write instead.
    replaced: ClassVar[dict[str, str]] = {}
    #: Former names of keys -> their names; documents may go on using them (see ``documents.renamed_keys``).
    renamed: ClassVar[dict[str, str]] = {}


class Provenance(Strict):
    """Where a catalogue entry's facts come from."""

    source: str = Field(min_length=1, description="Document or measurement the facts were taken from.")
    as_of: datetime.date = Field(description="Day on which they were looked up.")
    notes: str = Field("", description="What was assumed, converted or left out.")


def check_price_range(key: str, bounds: tuple[float, float] | None, price: float) -> None:
    """Refuse a range that does not hold the price.

    Raises:
        KeyedError: with ``key``.
    """
    if bounds is not None and not bounds[0] <= price <= bounds[1]:
        expected = f"expected low <= {price:g} <= high, got [{bounds[0]:g}, {bounds[1]:g}]"
        raise KeyedError((key,), f"{expected}; leave it out where the price is exact")


class Price(Strict):
    """A price per hour. Shipped prices are assumptions for the user to edit, and say so."""

    usd_per_hour: NonNegative = Field(description="Of one accelerator, or of one whole host.")
    range_usd_per_hour: tuple[NonNegative, NonNegative] | None = Field(
        None, description="Least and most that it may turn out to be; exact where absent."
    )
    evidence: Evidence = Field("assumed", description="How the price is known; reports mark assumed ones.")
    source: str = Field(min_length=1, description="Price list, contract or assumption it was taken from.")
    as_of: datetime.date = Field(description="Day on which it was looked up.")

    @model_validator(mode="after")
    def _check(self) -> Price:
        check_price_range("range_usd_per_hour", self.range_usd_per_hour, self.usd_per_hour)
        return self


class Metadata(Strict):
    """Name and free-form description of a document."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=120,
        description="Lower-case letters, digits, dot, dash, underscore; a catalogue file's is that of the file.",
    )
    description: str = Field("", description="For people; `hisearch list KIND` shows it.")
