"""An ONNX graph of a decoder -> :class:`ModelSpec`, by the products of its layers; needs the package ``onnx``.

Exporters keep the names of modules: a product belongs to layer ``layers.N`` (or ``layers/N``) and to the projection
whose name it carries. Weights are looked at by shape alone, external data stays unread. What shapes cannot tell is the
width of a head: it is that of a GroupQueryAttention node where the graph has one, else it must be given.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any, NamedTuple

from hisearch.specs.base import DType, Provenance
from hisearch.specs.model import ModelSpec

_LAYER = re.compile(r"layers[./](\d+)[./]")
_PROJECTION = re.compile(r"(gate_up_proj|qkv_proj|q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)")
_EXPERT = re.compile(r"experts?[./]\d+[./]")
#: ``onnx.TensorProto`` data types of weights.
_DTYPES: dict[int, DType] = {1: "fp32", 10: "fp16", 16: "bf16", 17: "fp8", 3: "int8", 22: "int4"}


class OnnxError(ValueError):
    """A graph that cannot be read as a decoder; says what is missing."""


class Weight(NamedTuple):
    """Inputs and outputs of a product, and the type of its weight."""

    inputs: int
    outputs: int
    data_type: int


def read_onnx(path: Path, *, max_context_tokens: int, head_dim: int | None = None) -> ModelSpec:
    """The model that a graph computes.

    Args:
        path: an ``.onnx`` file; beside it any external data, which is not read.
        max_context_tokens: longest sequence, which no graph says.
        head_dim: width of a head, where no GroupQueryAttention node tells the number of heads.

    Raises:
        OnnxError: the package is missing, or the graph is not that of a dense decoder with named projections.
    """
    try:
        import onnx
    except ImportError:
        raise OnnxError(f"{path}: reading ONNX needs the package onnx: pip install 'hisearch[onnx]'") from None
    graph = onnx.load(str(path), load_external_data=False).graph
    found = _weights(path, graph)
    layers = sorted({layer for layer, _ in found})
    if layers != list(range(len(layers))) or not layers:
        raise OnnxError(f"{path}: no products named layers.0 to layers.N; layers found: {layers or 'none'}")
    shapes = {name: found[0, name] for layer, name in found if layer == 0}
    for (layer, name), weight in found.items():
        if shapes.get(name) != weight:
            raise OnnxError(f"{path}: {name} of layer {layer} is {weight[:2]}, that of layer 0 {shapes.get(name)}")
    heads, kv_heads, width = _heads(path, graph, shapes, head_dim)
    down = _need(path, shapes, "down_proj")
    vocabulary = _table(path, graph, down.outputs)
    return ModelSpec(
        huggingface_id=path.stem,
        layers=len(layers),
        hidden_size=down.outputs,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        intermediate_size=down.inputs,
        vocab_size=vocabulary,
        gated_ffn="gate_proj" in shapes or "gate_up_proj" in shapes,
        weight_dtype=_DTYPES.get(down.data_type, "bf16"),
        max_context_tokens=max_context_tokens,
        provenance=Provenance(source=f"ONNX graph {path.name}", as_of=datetime.date.today()),
    )


def _weights(path: Path, graph: Any) -> dict[tuple[int, str], Weight]:
    """Products by layer and projection."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    # A weight may be transposed on its way.
    turned = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Transpose"}
    found: dict[tuple[int, str], Weight] = {}
    for node in graph.node:
        if node.op_type not in {"MatMul", "Gemm"} or len(node.input) < 2:
            continue
        name = node.input[1]
        tensor = tensors.get(turned.get(name, name))
        label = f"{node.name} {tensor.name if tensor is not None else ''}"
        layer, projection = _LAYER.search(label), _PROJECTION.search(label)
        if tensor is None or layer is None or projection is None:
            continue
        if _EXPERT.search(label):
            raise OnnxError(f"{path}: {node.name} is an expert's; models with experts are not read from ONNX")
        rows, columns = tensor.dims
        transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        if transposed != (name in turned):
            rows, columns = columns, rows
        found[int(layer[1]), projection[1]] = Weight(rows, columns, tensor.data_type)
    return found


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


def _need(path: Path, shapes: dict[str, Weight], name: str) -> Weight:
    if name not in shapes:
        raise OnnxError(f"{path}: no product of {name} in layer 0; found: {', '.join(sorted(shapes)) or 'none'}")
    return shapes[name]


def _table(path: Path, graph: Any, hidden: int) -> int:
    """Rows of the embedding: the Gather from a tensor as wide as the model."""
    tensors = {tensor.name: tensor.dims for tensor in graph.initializer}
    for node in graph.node:
        dims = tensors.get(node.input[0]) if node.op_type == "Gather" else None
        if dims is not None and len(dims) == 2 and dims[1] == hidden:
            return int(dims[0])
    raise OnnxError(f"{path}: no embedding: no Gather from a tensor of {hidden} columns")
