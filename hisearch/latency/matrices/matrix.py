"""A weight matrix of one rank, and the bytes of weights and KV entries by format."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisearch.specs.base import DTYPE_BYTES, KV_SCALE_BYTES, WEIGHT_SCALE_BYTES, DType
from hisearch.specs.models.model import ModelSpec

#: Unquantised formats of weights; everything narrower is quantised.
WIDE_DTYPES: frozenset[str] = frozenset({"fp32", "bf16", "fp16"})


@dataclass(frozen=True)
class Matrix:
    """A weight matrix of one rank, ``inputs x outputs`` elements, in ``layers`` layers.

    The rank holds ``experts`` copies per layer; a token uses ``experts_per_token`` of all ``experts * expert_ranks``.
    Dense matrices have one of one. ``routed``: tokens choose among the copies, of which a rank may hold just one.
    ``token_groups`` attention groups send their tokens through it. ``quantised``: False where it always stays wide.
    ``wide_in``: checkpoint formats in which it stays in 16 bits too. ``single``: kept and multiplied in 32 bits.
    ``tensor_cores``: these multiply it all the same, in TF32; priced at the rate of 16 bits, as memory bounds it.
    ``others``: by checkpoint format, another quantised format that it has there.
    """

    name: str
    inputs: int
    outputs: int
    layers: int
    experts: int = 1
    experts_per_token: int = 1
    quantised: bool = True
    expert_ranks: int = 1
    token_groups: int = 1
    routed: bool = False
    wide_in: frozenset[DType] = frozenset()
    single: bool = False
    tensor_cores: bool = False
    others: tuple[tuple[DType, DType], ...] = ()

    def takes(self, weight_dtype: DType) -> bool:
        """Whether it is as narrow as a checkpoint in ``weight_dtype`` has its matrices; else ``wide``."""
        return self.quantised and weight_dtype not in self.wide_in

    def wide(self, weight_dtype: DType) -> DType:
        """Its format where it does not take that of the checkpoint."""
        return "fp32" if self.single else wide_dtype(weight_dtype)

    def format(self, weight_dtype: DType) -> DType:
        """Its format in a checkpoint in ``weight_dtype``."""
        if not self.takes(weight_dtype):
            return self.wide(weight_dtype)
        return dict(self.others).get(weight_dtype, weight_dtype)

    def element_bytes(self, weight_dtype: DType) -> float:
        """Bytes of an element in a checkpoint in ``weight_dtype``, scales included."""
        return element_bytes(self.format(weight_dtype))

    @property
    def elements(self) -> int:
        """Elements in all layers and experts."""
        return self.inputs * self.outputs * self.layers * self.experts


def element_bytes(dtype: DType) -> float:
    """Bytes a weight takes in ``dtype``, scales included."""
    return DTYPE_BYTES[dtype] + WEIGHT_SCALE_BYTES.get(dtype, 0.0)


def kv_element_bytes(dtype: DType) -> float:
    """Bytes an element of the KV cache takes in ``dtype``, scales included."""
    return DTYPE_BYTES[dtype] + KV_SCALE_BYTES.get(dtype, 0.0)


def wide_dtype(dtype: DType) -> DType:
    """Format of a model's unquantised parts: ``dtype``, or bf16 where ``dtype`` is quantised."""
    return dtype if dtype in WIDE_DTYPES else "bf16"


def with_formats(model: ModelSpec, unmarked: list[Matrix]) -> list[Matrix]:
    """``unmarked`` matrices with the checkpoint formats in which they have another one than that."""
    if not model.kept_wide and not model.other_formats:
        return unmarked
    return [replace(matrix, wide_in=_wide_in(model, matrix), others=_others(model, matrix)) for matrix in unmarked]


def _wide_in(model: ModelSpec, matrix: Matrix) -> frozenset[DType]:
    return frozenset(dtype for dtype, kept in model.kept_wide.items() if matrix.name in kept)


def _others(model: ModelSpec, matrix: Matrix) -> tuple[tuple[DType, DType], ...]:
    return tuple(
        (dtype, other)
        for dtype, formats in model.other_formats.items()
        for other, names in formats.items()
        if matrix.name in names
    )
