"""ONNX graphs of decoders, made by the tests; need the package onnx."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")

from hisearch.latency.estimators.roofline import RooflineEstimator  # noqa: E402
from hisearch.latency.parameters import parameter_count  # noqa: E402
from hisearch.latency.priced import PricedWorker  # noqa: E402
from hisearch.latency.sharding import Parallelism  # noqa: E402
from hisearch.latency.step_cost import decode_step_seconds  # noqa: E402
from hisearch.specs.deployments.deployment import EngineSpec  # noqa: E402
from hisearch.specs.documents.catalogue import Catalogue  # noqa: E402
from hisearch.specs.models.onnx_model import OnnxError, read_onnx  # noqa: E402

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


EXPERTS, CHOSEN, EXPERT_FFN, SHARED_FFN = 4, 2, 48, 32


class Graph:
    """A graph with experts, put together part by part."""

    def __init__(self) -> None:
        kind, self.helper = onnx.TensorProto.BFLOAT16, onnx.helper
        self.tensors = [
            self.helper.make_tensor("embed", kind, (VOCABULARY, HIDDEN), b"\0" * 2 * VOCABULARY * HIDDEN, raw=True)
        ]
        self.nodes = [self.helper.make_node("Gather", ["embed", "ids"], ["x"])]

    def weight(self, name: str, dims: tuple[int, ...], kind: int = onnx.TensorProto.BFLOAT16, width: int = 2) -> str:
        size = width * int(onnx.numpy_helper.np.prod(dims))
        self.tensors.append(self.helper.make_tensor(name, kind, dims, b"\0" * size, raw=True))
        return name

    def product(self, layer: int, name: str, dims: tuple[int, int]) -> None:
        label = f"/model/layers.{layer}/{name}/MatMul"
        self.nodes.append(
            self.helper.make_node("MatMul", ["x", self.weight(f"w {layer} {name}", dims)], [label], name=label)
        )

    def attention(self, layer: int) -> None:
        for name, dims in SHAPES.items():
            if "self_attn" in name:
                self.product(layer, name, dims)

    def dense(self, layer: int) -> None:
        for name, dims in SHAPES.items():
            if "mlp" in name:
                self.product(layer, name, dims)

    def experts(self, layer: int, names=("gate_proj", "up_proj", "down_proj"), count=EXPERTS, width=EXPERT_FFN) -> None:
        for expert in range(count):
            for name, dims in zip(names, ((HIDDEN, width), (HIDDEN, width), (width, HIDDEN)), strict=True):
                self.product(layer, f"mlp/experts.{expert}/{name}", dims)

    def shared(self, layer: int) -> None:
        for name, dims in (("gate_proj", (HIDDEN, SHARED_FFN)), ("up_proj", (HIDDEN, SHARED_FFN)),
                           ("down_proj", (SHARED_FFN, HIDDEN))):  # fmt: skip
            self.product(layer, f"mlp/shared_expert/{name}", dims)

    def top_k(self, layer: int, k: int = CHOSEN) -> None:
        self.tensors.append(self.helper.make_tensor(f"k {layer}", onnx.TensorProto.INT64, (1,), [k]))
        self.nodes.append(
            self.helper.make_node("TopK", ["x", f"k {layer}"], ["a", "b"], name=f"/model/layers.{layer}/mlp/TopK")
        )

    def stacked(self, layer: int, weights: list[str | None], operator: str = "MoE", **attributes: int) -> None:
        inputs = ["x", "router", *("" if name is None else name for name in weights)]
        name = f"/model/layers.{layer}/moe/{operator}"
        self.nodes.append(
            self.helper.make_node(operator, inputs, ["y"], name=name, domain="com.microsoft", k=CHOSEN, **attributes)
        )

    def read(self, folder: Path, **options):
        path = folder / "experts.onnx"
        onnx.save(
            self.helper.make_model(self.helper.make_graph(self.nodes, "experts", [], [], self.tensors)), str(path)
        )
        return read_onnx(path, max_context_tokens=4096, head_dim=WIDTH, **options)


def test_experts_one_by_one_behind_a_dense_layer(tmp_path):
    made = Graph()
    for layer in range(3):
        made.attention(layer)
        if layer == 0:
            made.dense(layer)
            continue
        made.experts(layer)
        made.shared(layer)
        made.top_k(layer)
    model = made.read(tmp_path)
    assert model.moe.model_dump() == {
        "experts": EXPERTS, "experts_per_token": CHOSEN, "expert_intermediate_size": EXPERT_FFN, "shared_experts": 1,
        "shared_intermediate_size": SHARED_FFN, "leading_dense_layers": 1,
    }  # fmt: skip
    assert (model.layers, model.intermediate_size, model.hidden_size, model.gated_ffn) == (3, FFN, HIDDEN, True)


def test_mixtrals_names_and_experts_per_token_given(tmp_path):
    made = Graph()
    for layer in range(2):
        made.attention(layer)
        made.experts(layer, names=("w1", "w3", "w2"))
    with pytest.raises(OnnxError, match="how many experts a token uses; give experts_per_token"):
        made.read(tmp_path)
    model = made.read(tmp_path, experts_per_token=3)
    assert (model.moe.experts, model.moe.experts_per_token, model.intermediate_size) == (EXPERTS, 3, 0)
    with pytest.raises(OnnxError, match="uses 5 experts, but a layer has 4"):
        made.read(tmp_path, experts_per_token=5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts_of_onnx_runtime(tmp_path, fused, turned):
    made = Graph()
    wide = 2 * EXPERT_FFN if fused else EXPERT_FFN
    for layer in range(2):
        made.attention(layer)
        first, second = (HIDDEN, wide), (EXPERT_FFN, HIDDEN)
        if turned:
            first, second = first[::-1], second[::-1]
        up, down = (made.weight(f"{n} {layer}", (EXPERTS, *dims)) for n, dims in (("fc1", first), ("fc2", second)))
        three = None if fused else made.weight(f"fc3 {layer}", (EXPERTS, *first))
        made.stacked(layer, [up, None, down, None, three])
    model = made.read(tmp_path)
    assert (model.moe.experts, model.moe.experts_per_token, model.moe.expert_intermediate_size) == (4, 2, EXPERT_FFN)
    assert (model.weight_dtype, model.gated_ffn) == ("bf16", True)


def test_stacked_experts_of_four_bits_are_packed_by_two(tmp_path):
    made, kind = Graph(), onnx.TensorProto.UINT8
    made.attention(0)
    up = made.weight("fc1", (EXPERTS, 2 * EXPERT_FFN, HIDDEN // 2), kind, 1)
    two = made.weight("fc2", (EXPERTS, HIDDEN, EXPERT_FFN // 2), kind, 1)
    made.stacked(0, [up, "s1", None, two, "s2"], "QMoE", expert_weight_bits=4)
    model = made.read(tmp_path)
    assert (model.weight_dtype, model.moe.expert_intermediate_size, model.gated_ffn) == ("int4", EXPERT_FFN, True)


def test_experts_that_differ_are_refused(tmp_path):
    made = Graph()
    for layer in range(2):
        made.attention(layer)
        made.experts(layer, width=EXPERT_FFN * (layer + 1))
    with pytest.raises(OnnxError, match="expert 0's gate_proj of layer 1"):
        made.read(tmp_path)
    made = Graph()
    for layer in range(2):
        made.attention(layer)
        made.experts(layer, count=EXPERTS + layer)
    with pytest.raises(OnnxError, match="different experts are not read; experts by layer"):
        made.read(tmp_path, experts_per_token=2)
    made = Graph()
    made.attention(0)
    made.stacked(0, [made.weight("fc1", (EXPERTS, 7, 9)), None, made.weight("fc2", (EXPERTS, 9, 7))])
    with pytest.raises(OnnxError, match="no dimension of its weights is the width of o_proj"):
        made.read(tmp_path)


def test_a_graph_with_experts_has_a_price(tmp_path):
    """What is read is a model like any other: it has as many parameters as the graph's products, and a step's price."""
    made = Graph()
    for layer in range(2):
        made.attention(layer)
        made.experts(layer)
        made.top_k(layer)
    model = made.read(tmp_path)
    assert (
        parameter_count(model)
        == 2
        * (HIDDEN * (HEADS + 2 * KV_HEADS) * WIDTH + HEADS * WIDTH * HIDDEN + EXPERTS * (3 * EXPERT_FFN + 1) * HIDDEN)
        + 2 * VOCABULARY * HIDDEN
        + 5 * HIDDEN
    )
    catalogue = Catalogue()
    accelerator = catalogue.get("Accelerator", "h100-sxm").spec
    priced = PricedWorker(model, accelerator, Parallelism(1), None, "bf16", EngineSpec(name="vllm"), 64, 8, 4096)
    profile = catalogue.get("LatencyProfile", "roofline").spec
    costs = RooflineEstimator("roofline", profile).compile(priced).seconds
    assert decode_step_seconds(costs, 4, 400) > 0.0


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
