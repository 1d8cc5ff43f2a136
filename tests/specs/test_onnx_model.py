"""ONNX graphs of decoders, made here; need the package onnx."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")

from hisearch.specs.onnx_model import OnnxError, read_onnx  # noqa: E402

HIDDEN, HEADS, KV_HEADS, WIDTH, FFN, VOCABULARY = 64, 8, 2, 16, 96, 500
SHAPES = {
    "self_attn/q_proj": (HIDDEN, HEADS * WIDTH),
    "self_attn/k_proj": (HIDDEN, KV_HEADS * WIDTH),
    "self_attn/v_proj": (HIDDEN, KV_HEADS * WIDTH),
    "self_attn/o_proj": (HEADS * WIDTH, HIDDEN),
    "mlp/gate_proj": (HIDDEN, FFN),
    "mlp/up_proj": (HIDDEN, FFN),
    "mlp/down_proj": (FFN, HIDDEN),
}


def graph(folder: Path, layers: int = 3, *, gemm: bool = False, attention: bool = False, **changed) -> Path:
    """A file of products alone, as nothing else is looked at."""
    helper, kind = onnx.helper, onnx.TensorProto.BFLOAT16
    tensors = [helper.make_tensor("embed", kind, (VOCABULARY, HIDDEN), b"\0" * 2 * VOCABULARY * HIDDEN, raw=True)]
    nodes = [helper.make_node("Gather", ["embed", "ids"], ["x"])]
    for layer in range(layers):
        for name, shape in ({**SHAPES, **changed} if layer else SHAPES).items():
            dims = shape[::-1] if gemm else shape
            weight = f"onnx::MatMul_{layer}_{name}"
            tensors.append(helper.make_tensor(weight, kind, dims, b"\0" * 2 * dims[0] * dims[1], raw=True))
            label = f"/model/layers.{layer}/{name}/MatMul"
            more = {"transB": 1} if gemm else {}
            nodes.append(helper.make_node("Gemm" if gemm else "MatMul", ["x", weight], [label], name=label, **more))
    if attention:
        nodes.append(helper.make_node("GroupQueryAttention", ["x"], ["y"], num_heads=HEADS, kv_num_heads=KV_HEADS))
    path = folder / "tiny.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "tiny", [], [], tensors)), str(path))
    return path


@pytest.mark.parametrize("gemm", [False, True])
@pytest.mark.parametrize("attention", [False, True])
def test_a_decoder_is_read_by_its_products(tmp_path, gemm, attention):
    path = graph(tmp_path, gemm=gemm, attention=attention)
    model = read_onnx(path, max_context_tokens=4096, head_dim=None if attention else WIDTH)
    assert (model.layers, model.hidden_size, model.intermediate_size, model.vocab_size) == (3, HIDDEN, FFN, VOCABULARY)
    assert (model.attention_heads, model.kv_heads, model.head_dim) == (HEADS, KV_HEADS, WIDTH)
    assert model.gated_ffn
    assert model.weight_dtype == "bf16"


def test_what_a_graph_does_not_say_is_asked_for(tmp_path):
    with pytest.raises(OnnxError, match="how wide a head is; give head_dim"):
        read_onnx(graph(tmp_path), max_context_tokens=4096)
    with pytest.raises(OnnxError, match="head_dim 24 does not divide"):
        read_onnx(graph(tmp_path), max_context_tokens=4096, head_dim=24)


def test_layers_that_differ_are_refused(tmp_path):
    path = graph(tmp_path, **{"mlp/down_proj": (2 * FFN, HIDDEN)})
    with pytest.raises(OnnxError, match="down_proj of layer 1"):
        read_onnx(path, max_context_tokens=4096, head_dim=WIDTH)
    with pytest.raises(OnnxError, match="no products named"):
        read_onnx(graph(tmp_path, layers=0), max_context_tokens=4096, head_dim=WIDTH)
