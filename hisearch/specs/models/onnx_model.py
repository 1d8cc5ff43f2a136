"""An ONNX graph of a decoder -> :class:`ModelSpec`, by the products of its layers; needs the package ``onnx``.

Exporters keep the names of modules: a product belongs to layer ``layers.N`` (or ``layers/N``) and to the projection
whose name it carries. Only the shapes of weights are read; external data stays unread. Shapes do not tell the width
of a head: it is that of a GroupQueryAttention node where the graph has one, else it must be given.

Experts are products of ``experts.E``, or the stacked weights of ONNX Runtime's MoE and QMoE operators. The number of
experts per token is the operator's ``k``, or that of a layer's TopK node, else it must be given.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hisearch.specs.base import DType, Provenance
from hisearch.specs.models.model import ModelSpec, MoeSpec

_LAYER = re.compile(r"layers[./](\d+)[./]")
_PROJECTION = re.compile(r"(gate_up_proj|qkv_proj|q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj|\bw[123]\b)")
_EXPERT = re.compile(r"experts?[./](\d+)[./]")
_SHARED = re.compile(r"shared_experts?[./]")
_ATTENTION = ("qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj")
#: Mixtral's names of an expert's matrices.
_SYNONYMS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
#: Stacked weights of the first, second and third matrix among the inputs of ONNX Runtime's operators.
_STACKED = {"MoE": (2, 4, 6), "QMoE": (2, 5, 8)}
#: ``onnx.TensorProto`` data types of weights.
_DTYPES: dict[int, DType] = {1: "fp32", 10: "fp16", 16: "bf16", 17: "fp8", 3: "int8", 22: "int4"}
#: Formats by ``expert_weight_bits`` of QMoE.
_PACKED: dict[int, DType] = {4: "int4", 8: "int8"}


class OnnxError(ValueError):
    """A graph that cannot be read as a decoder; says what is missing."""


class Weight(NamedTuple):
    """Inputs and outputs of a product, and the type of its weight."""

    inputs: int
    outputs: int
    dtype: DType


class Layer(NamedTuple):
    """Products of a layer by projection: attention and dense FFN, shared experts, and each routed expert's."""

    dense: dict[str, Weight]
    shared: dict[str, Weight]
    experts: dict[int, dict[str, Weight]]


def read_onnx(
    path: Path, *, max_context_tokens: int, head_dim: int | None = None, experts_per_token: int | None = None
) -> ModelSpec:
    """The model that a graph computes.

    Args:
        path: an ``.onnx`` file; external data next to it is not read.
        max_context_tokens: longest sequence, which no graph says.
        head_dim: width of a head, where no GroupQueryAttention node tells the number of heads.
        experts_per_token: experts that a token uses, where neither MoE nor TopK nodes tell.

    Raises:
        OnnxError: the package is missing, or the graph is not that of a decoder with named projections.
    """
    try:
        import onnx
    except ImportError:
        raise OnnxError(f"{path}: reading ONNX needs the package onnx: pip install 'hisearch[onnx]'") from None
    graph = onnx.load(str(path), load_external_data=False).graph
    layers = _layers(path, graph)
    shapes = _alike(path, layers)
    heads, kv_heads, width = _heads(path, graph, shapes.dense, head_dim)
    hidden = _need(path, shapes.dense, "o_proj").outputs
    dense = shapes.dense.get("down_proj")
    moe = _moe(path, graph, layers, shapes, experts_per_token)
    if moe is None:
        dense = _need(path, shapes.dense, "down_proj")
    ffn = shapes.dense if dense is not None else shapes.experts[0]
    kept = dense if dense is not None else _need(path, shapes.experts[0], "down_proj", "an expert")
    return ModelSpec(
        huggingface_id=path.stem,
        layers=len(layers),
        hidden_size=hidden,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        intermediate_size=dense.inputs if dense is not None else 0,
        vocab_size=_table(path, graph, hidden),
        gated_ffn="gate_proj" in ffn or "gate_up_proj" in ffn,
        weight_dtype=kept.dtype,
        max_context_tokens=max_context_tokens,
        moe=moe,
        provenance=Provenance(source=f"ONNX graph {path.name}", as_of=datetime.date.today()),
    )


def _layers(path: Path, graph: Any) -> list[Layer]:
    """Products of all layers, in order."""
    by_index: dict[int, Layer] = {}
    for index, part, name, weight in [*_products(graph), *_stacked(path, graph)]:
        layer = by_index.setdefault(index, Layer({}, {}, {}))
        projections = layer.experts.setdefault(part, {}) if isinstance(part, int) else getattr(layer, part)
        projections[name] = weight
    if sorted(by_index) != list(range(len(by_index))) or not by_index:
        raise OnnxError(f"{path}: no products named layers.0 to layers.N; layers found: {sorted(by_index) or 'none'}")
    return [by_index[index] for index in range(len(by_index))]


def _products(graph: Any) -> Iterator[tuple[int, int | str, str, Weight]]:
    """(layer, expert or part of the layer, projection, weight) of each named product."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    # A weight may pass through a Transpose node.
    turned = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    for node in graph.node:
        if node.op_type not in {"MatMul", "Gemm"} or len(node.input) < 2:
            continue
        name = node.input[1]
        tensor = tensors.get(turned.get(name, name))
        label = f"{node.name} {tensor.name if tensor is not None else ''}"
        layer, projection = _LAYER.search(label), _PROJECTION.search(label)
        if tensor is None or layer is None or projection is None:
            continue
        rows, columns = tensor.dims
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        if transposed != (name in turned):
            rows, columns = columns, rows
        expert = _EXPERT.search(label)
        part: int | str = "dense"
        if _SHARED.search(label):
            part = "shared"
        elif expert is not None:
            part = int(expert[1])
        weight = Weight(rows, columns, _DTYPES.get(tensor.data_type, "bf16"))
        yield int(layer[1]), part, _SYNONYMS.get(projection[1], projection[1]), weight


def _stacked(path: Path, graph: Any) -> Iterator[tuple[int, int | str, str, Weight]]:
    """The same of experts whose weights are stacked, [experts, …], for ONNX Runtime's operators."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        layer = _LAYER.search(node.name)
        if node.op_type not in _STACKED or layer is None:
            continue
        held = [
            tensors[node.input[place]]
            for place in _STACKED[node.op_type]
            if place < len(node.input) and node.input[place] in tensors
        ]
        if len(held) < 2 or any(len(tensor.dims) != 3 for tensor in held):
            raise OnnxError(f"{path}: {node.name}: no weights of [experts, rows, columns] for its two matrices")
        bits = _attribute(node, "expert_weight_bits", 4) if node.op_type == "QMoE" else 0
        packed = 8 // bits if bits else 1
        dtype = _PACKED.get(bits) or _DTYPES.get(held[0].data_type, "bf16")
        first, second = (sorted((tensor.dims[1], tensor.dims[2] * packed)) for tensor in held[:2])
        common = set(first) & set(second)
        hidden = _hidden(path, node, graph, common)
        wide, width = (sum(dims) - hidden for dims in (first, second))
        gated = len(held) > 2 or wide == 2 * width
        if wide not in {width, 2 * width}:
            raise OnnxError(f"{path}: {node.name}: its first matrix is {wide} wide, its second {width}")
        for expert in range(held[0].dims[0]):
            yield int(layer[1]), expert, "gate_proj" if gated else "up_proj", Weight(hidden, width, dtype)
            if gated:
                yield int(layer[1]), expert, "up_proj", Weight(hidden, width, dtype)
            yield int(layer[1]), expert, "down_proj", Weight(width, hidden, dtype)


def _hidden(path: Path, node: Any, graph: Any, common: set[int]) -> int:
    """The width of the model among the dimensions that a MoE operator's matrices share."""
    widths = {
        weight.outputs for _, part, name, weight in _products(graph) if part == "dense" and name == "o_proj"
    } & common
    if len(widths) != 1:
        raise OnnxError(f"{path}: {node.name}: no dimension of its weights is the width of o_proj; they share {common}")
    return widths.pop()


def _alike(path: Path, layers: list[Layer]) -> Layer:
    """The products that all layers have, each where it occurs; layers with experts follow those without."""
    first = Layer({}, {}, {})
    for index, layer in enumerate(layers):
        for weights, known, what in (
            (layer.dense, first.dense, ""),
            (layer.shared, first.shared, "shared experts' "),
            *((expert, first.experts.setdefault(0, {}), f"expert {e}'s ") for e, expert in layer.experts.items()),
        ):
            for name, weight in weights.items():
                if known.setdefault(name, weight) != weight:
                    raise OnnxError(
                        f"{path}: {what}{name} of layer {index} is {weight[:2]}, that of others {known[name][:2]}"
                    )
    for index, layer in enumerate(layers):
        missing = sorted(name for name in _ATTENTION if name in first.dense and name not in layer.dense)
        if missing:
            raise OnnxError(f"{path}: layer {index} has no {', '.join(missing)}")
        if not layer.experts and "down_proj" not in layer.dense:
            raise OnnxError(f"{path}: layer {index} has no down_proj, and no experts")
    return first


def _moe(path: Path, graph: Any, layers: list[Layer], shapes: Layer, per_token: int | None) -> MoeSpec | None:
    """Experts of the layers that have some; None where none has."""
    counts = [len(layer.experts) for layer in layers]
    if not any(counts):
        return None
    leading = next(index for index, count in enumerate(counts) if count)
    if set(counts[leading:]) != {counts[-1]}:
        raise OnnxError(f"{path}: layers with different experts are not read; experts by layer: {counts}")
    for index, layer in enumerate(layers):
        if sorted(layer.experts) != list(range(len(layer.experts))):
            raise OnnxError(f"{path}: experts of layer {index} are not numbered from 0: {sorted(layer.experts)}")
    known = per_token if per_token is not None else _experts_per_token(graph)
    if known is None:
        raise OnnxError(f"{path}: the graph does not say how many experts a token uses; give experts_per_token")
    if known > counts[-1]:
        raise OnnxError(f"{path}: a token uses {known} experts, but a layer has {counts[-1]}")
    width = _need(path, shapes.experts[0], "down_proj", "an expert").inputs
    shared = shapes.shared["down_proj"].inputs if "down_proj" in shapes.shared else 0
    return MoeSpec(
        experts=counts[-1],
        experts_per_token=known,
        expert_intermediate_size=width,
        shared_experts=max(shared // width, 1) if shared else 0,
        shared_intermediate_size=shared,
        leading_dense_layers=leading,
    )


def _experts_per_token(graph: Any) -> int | None:
    """``k`` of the first MoE operator, or of the first TopK of a layer."""
    values = {tensor.name: tensor for tensor in graph.initializer}
    values |= {
        node.output[0]: attribute.t
        for node in graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    for node in graph.node:
        if node.op_type in _STACKED:
            return _attribute(node, "k", 1)
        if node.op_type == "TopK" and _LAYER.search(node.name) and node.input[1] in values:
            from onnx import numpy_helper

            return int(numpy_helper.to_array(values[node.input[1]]).reshape(-1)[0])
    return None


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)


def _heads(path: Path, graph: Any, shapes: dict[str, Weight], head_dim: int | None) -> tuple[int, int, int]:
    """(query heads, KV heads, width of a head)."""
    queries = _need(path, shapes, "o_proj").inputs
    keys = (
        (shapes["qkv_proj"].outputs - queries) // 2 if "qkv_proj" in shapes else _need(path, shapes, "k_proj").outputs
    )
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            counts = {attribute.name: attribute.i for attribute in node.attribute}
            head_dim = queries // counts["num_heads"]
    if head_dim is None:
        raise OnnxError(f"{path}: the graph does not say how wide a head is; give head_dim")
    if queries % head_dim or keys % head_dim:
        raise OnnxError(f"{path}: head_dim {head_dim} does not divide queries {queries} and keys {keys}")
    return queries // head_dim, keys // head_dim, head_dim


def _need(path: Path, shapes: dict[str, Weight], name: str, where: str = "any layer") -> Weight:
    if name not in shapes:
        raise OnnxError(f"{path}: no product of {name} in {where}; found: {', '.join(sorted(shapes)) or 'none'}")
    return shapes[name]


def _table(path: Path, graph: Any, hidden: int) -> int:
    """Rows of the embedding: the Gather from a tensor as wide as the model."""
    tensors = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        dims = tensors.get(node.input[0]) if node.op_type == "Gather" else None
        if dims is not None and len(dims) == 2 and dims[1] == hidden:
            return int(dims[0])
    raise OnnxError(f"{path}: no embedding: no Gather from a tensor of {hidden} columns")
