"""Every document that ships: valid, named as its file, and right where there is something to hold it against."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import pytest

from hisearch.specs.checks.doctor import load_any
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.kinds import FOLDERS, KINDS
from hisearch.specs.machines.parallelism import split_problems
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue(shipped_root())
SHIPPED = [(kind, name) for kind in KINDS for name in CATALOGUE.names(kind)]

#: Billions of parameters, all and active, as the models' cards give them.
PUBLISHED = {
    "gpt3-175b": (175.0, 175.0),
    "gpt3-6.7b": (6.7, 6.7),
    "llama-3.1-8b": (8.03, 8.03),
    "llama-2-70b": (69.0, 69.0),
    "llama-3.1-70b": (70.6, 70.6),
    "llama-3.1-405b": (405.9, 405.9),
    "qwen2.5-7b": (7.62, 7.62),
    "qwen2.5-32b": (32.8, 32.8),
    "qwen3-8b": (8.19, 8.19),
    "qwen3-32b": (32.8, 32.8),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235.0, 22.0),
    "qwen3-coder-480b-a35b": (480.0, 35.0),
    "kimi-k2.5": (1026.0, 32.0),
    "minimax-m2.5": (228.7, 10.0),
    "qwen3.5-397b-a17b": (397.0, 17.0),
    "mixtral-8x7b": (46.7, 12.9),
    "gpt-oss-120b": (116.8, 5.1),
    "deepseek-v3": (671.0, 37.0),
    "deepseek-v3.2": (671.0, 37.0),
    "glm-5": (744.0, 40.0),
    "deepseek-r1": (671.0, 37.0),
    "glm-5.2": (744.0, 40.0),
    "gpt-oss-20b": (20.9, 3.6),
    "kimi-k2": (1026.0, 32.0),
    "kimi-k2.6": (1026.0, 32.0),
    "minimax-m2.7": (228.7, 10.0),
    "minimax-m3": (427.4, 23.0),
    "deepseek-v4-flash": (284.33, 13.0),
    "deepseek-v4-pro": (1600.0, 49.0),
    "mixtral-8x22b": (141.0, 39.0),
    "qwen3-4b": (4.0, 4.0),
    "qwen3-14b": (14.8, 14.8),
    "qwen3-30b-a3b-2507": (30.5, 3.3),
    "qwen3-235b-a22b-2507": (235.0, 22.0),
    "qwen3-next-80b-a3b": (80.0, 3.9),
    "qwen3.5-27b": (27.0, 27.0),
    "qwen3.5-35b-a3b": (35.0, 3.0),
    "qwen3.5-122b-a10b": (122.0, 10.0),
    "gemma-3-12b": (11.77, 11.77),
    "gemma-3-27b": (27.01, 27.01),
    "gemma-4-26b-a4b": (25.2, 3.8),
    "gemma-4-31b": (30.7, 30.7),
    "llama-4-scout": (108.1, 17.0),
    "llama-4-maverick": (400.0, 17.0),
    "mimo-v2-flash": (309.0, 15.0),
    "step-3.7-flash": (196.0, 11.0),
    "kimi-k3": (2800.0, 104.0),
    "kimi-linear-48b-a3b": (49.0, 3.1),  # its card rounds to 48 and 3
    "nemotron-3-nano-30b-a3b": (31.6, 3.6),
    "nemotron-3-super-120b-a12b": (120.6, 12.7),
    "nemotron-3-ultra-550b-a55b": (550.0, 55.0),
    "nemotron-3.5-lightning-30b-a3b": (31.6, 3.6),
}


@pytest.mark.parametrize("name", CATALOGUE.names("Medium"))
def test_a_medium_s_price_has_a_source_of_its_own(name: str) -> None:
    """The source of its bandwidth says nothing of its price."""
    medium = CATALOGUE.get("Medium", name).spec
    assert medium.price_source != medium.provenance.source
    assert medium.price_source.startswith("an assumption of hisearch") == (medium.usd_per_gib_hour > 0)


def compressed_parameters(model: ModelSpec) -> int:
    """Weights of one layer of DeepSeek-V4's attention; of what makes entries, and indexers, a mean over layers."""
    kept = model.compressed_attention
    assert kept is not None
    hidden, width, heads = model.hidden_size, model.head_dim, model.attention_heads
    queries = hidden * kept.q_lora_rank + kept.q_lora_rank * heads * width
    output = heads * width * kept.output_rank + kept.output_groups * kept.output_rank * hidden
    index = kept.q_lora_rank * kept.index_heads * kept.index_head_dim + hidden * kept.index_heads
    indexed, other = (kind.layers for kind in kept.entries)
    entries = indexed * (4 * hidden * (width + kept.index_head_dim) + index) + other * 2 * hidden * width
    return queries + hidden * width + output + entries // model.layers


def attention_parameters(model: ModelSpec) -> int:
    """Weights of one attention layer, biases and norms left out."""
    if model.compressed_attention is not None:
        return compressed_parameters(model)
    if model.mla is None:
        value = model.value_head_dim or model.head_dim
        queries = (2 if model.attention_output_gate else 1) * model.attention_heads * model.head_dim
        keys_and_values = model.kv_heads * (model.head_dim + (0 if model.values_are_keys else value))
        return model.hidden_size * (queries + keys_and_values + model.attention_heads * value)
    mla, heads = model.mla, model.attention_heads
    query_width = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    query = (model.hidden_size + query_width) * mla.q_lora_rank or model.hidden_size * query_width
    gate = heads * mla.v_head_dim * model.hidden_size if model.attention_output_gate else 0
    latent = model.hidden_size * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    unpacked = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    indexer = 0
    if (sparse := model.sparse_attention) is not None:
        queries = mla.q_lora_rank * sparse.index_heads * sparse.index_head_dim
        indexer = queries + model.hidden_size * (sparse.index_head_dim + sparse.index_heads)
    return query + latent + unpacked + indexer + gate + heads * mla.v_head_dim * model.hidden_size


def window_parameters(model: ModelSpec) -> int:
    """Weights of one attention layer with a window."""
    own = model.window_heads
    if own is None:
        return attention_parameters(model)
    value = own.value_head_dim or own.head_dim
    return model.hidden_size * (own.attention_heads + own.kv_heads) * (own.head_dim + value)


def linear_parameters(model: ModelSpec) -> int:
    """Weights of one layer with a recurrent state: projections of keys, values, gates, scalars and output."""
    linear = model.linear_attention
    assert linear is not None
    keys, values = linear.key_heads * linear.key_head_dim, linear.value_heads * linear.value_head_dim
    if linear.kind == "kda":
        latent = model.hidden_size + keys
        gates = linear.gate_rank * latent or model.hidden_size * values
        plain = model.hidden_size * (2 * keys + 2 * values + linear.value_heads)
        return plain + linear.key_head_dim * latent + gates
    scalars = (1 if linear.kind == "mamba2" else 2) * linear.value_heads
    return model.hidden_size * (2 * keys + 2 * values + scalars + values)


def parameters(model: ModelSpec, *, active: bool) -> float:
    """Billions of parameters, embeddings and LM head included; with ``active``, those that one token uses."""
    matrices = 3 if model.gated_ffn else 2
    linear_layers = model.linear_attention.layers if model.linear_attention is not None else 0
    windowed = round(model.layers * model.sliding_window_layer_fraction) if model.sliding_window_tokens else 0
    total = (model.layers - linear_layers - windowed) * attention_parameters(model)
    total += windowed * window_parameters(model)
    total += linear_layers * linear_parameters(model) if linear_layers else 0
    total += (1 if model.tie_word_embeddings else 2) * model.vocab_size * model.hidden_size
    ffns = model.ffn_layers or model.layers
    dense_layers = ffns if model.moe is None else model.moe.leading_dense_layers
    total += dense_layers * matrices * model.hidden_size * model.intermediate_size
    if model.moe is not None:
        experts = model.moe.experts_per_token if active else model.moe.experts
        latent = model.moe.latent_size
        routed = matrices * (latent or model.hidden_size) * experts * model.moe.expert_intermediate_size
        shared = matrices * model.hidden_size * model.moe.shared_intermediate_size
        around = model.hidden_size * (model.moe.experts + 2 * latent)
        total += (ffns - dense_layers) * (routed + shared + around)
    return total / 1e9


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_it_loads_and_says_where_its_facts_come_from(kind: str, name: str) -> None:
    document = CATALOGUE.get(kind, name)
    assert document.description
    provenance = getattr(document.spec, "provenance", None)
    if provenance is not None:
        assert provenance.as_of >= datetime.date(2026, 11, 1)


def test_every_kind_ships() -> None:
    assert {kind for kind, _ in SHIPPED} == KINDS.keys()
    beneath = {path for kind in FOLDERS for path in (shipped_root() / FOLDERS[kind]).glob("*.y*ml")}
    assert len(beneath) == len(SHIPPED)


@pytest.mark.parametrize("name", CATALOGUE.names("Model"))
def test_a_model_has_its_published_size(name: str) -> None:
    model = CATALOGUE.get("Model", name).spec
    total, active = PUBLISHED[name]
    assert parameters(model, active=False) == pytest.approx(total, rel=0.03)
    if model.moe is not None:
        # Some count their active parameters without the embedding table, MiniMax and Step-3.7 without the LM head too;
        # rounding of the cards is up to 2 %.
        once = ("gpt-oss-120b", "gpt-oss-20b", "deepseek-v3.2", "glm-5", "glm-5.2", "qwen3.5-35b-a3b", "mimo-v2-flash")
        tables = dict.fromkeys((*once, "kimi-linear-48b-a3b", "deepseek-v4-flash", "deepseek-v4-pro"), 1)
        tables |= dict.fromkeys(("minimax-m2.5", "minimax-m2.7", "minimax-m3", "step-3.7-flash"), 2)
        embedding = tables.get(name, 0) * model.vocab_size * model.hidden_size / 1e9
        assert parameters(model, active=True) - embedding == pytest.approx(active, rel=0.03)


def _accelerators() -> list[Document]:
    return [CATALOGUE.get("Accelerator", name) for name in CATALOGUE.names("Accelerator")]


@pytest.mark.parametrize("document", _accelerators(), ids=lambda document: document.name)
def test_an_accelerator_is_plausible(document: Document) -> None:
    spec = document.spec
    assert 16 * 2**30 <= spec.memory_bytes < 300 * 2**30
    assert spec.peak_flops["bf16"] == spec.peak_flops["fp16"]
    assert spec.peak_flops["fp32"] < spec.peak_flops["bf16"]
    if "fp8" in spec.peak_flops:
        # Gaudi 3 multiplies both at the same rate; Trainium 2's sheet has a little less than twice.
        times = {"gaudi3": 1.0, "trainium2": 1.95}.get(document.name, 2.0)
        assert spec.peak_flops["fp8"] == pytest.approx(times * spec.peak_flops["bf16"], rel=0.02)
    if "fp4" in spec.peak_flops:
        # Blackwell Ultra's fp4 is three times fp8 without sparsity; GeForce halves fp8 with fp32 accumulation.
        times = {"b300": 3, "gb300": 3, "rtx5090": 4}.get(document.name, 2)
        assert spec.peak_flops["fp4"] == pytest.approx(times * spec.peak_flops["fp8"], rel=0.02)
    assert spec.host_link.bandwidth_bytes_per_s < spec.memory_bandwidth_bytes_per_s / 10
    if document.name != "gh200":  # Alone on its host, and on one package with the CPU.
        assert spec.host_link.bandwidth_bytes_per_s <= 2 * spec.peer_link.bandwidth_bytes_per_s
    # Those that are known to go to standby draw more while they wait for the next request.
    resting_w = spec.idle_w if spec.standby_w is None else spec.standby_w
    assert resting_w < spec.active_w / 4
    assert spec.idle_w < spec.active_w / 3
    assert spec.price.evidence == "assumed"
    assert "edit" in spec.price.source


@pytest.mark.parametrize("name", CATALOGUE.names("Accelerator"))
def test_an_accelerators_host_ships_and_costs_nothing_on_top(name: str) -> None:
    host_name = CATALOGUE.get("Accelerator", name).spec.host
    host = CATALOGUE.get("Host", host_name).spec
    assert host.price.usd_per_hour == 0
    assert {host.dram, host.nvme} <= set(CATALOGUE.names("Medium"))


def test_data_sheet_figures_of_the_h100() -> None:
    h100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
    assert h100.peak_flops["bf16"] == pytest.approx(1979e12 / 2, rel=1e-3)
    assert h100.peak_flops["fp8"] == pytest.approx(3958e12 / 2, rel=1e-3)
    assert h100.memory_bandwidth_bytes_per_s == 3.35e12
    assert h100.memory_bytes == 81559 * 2**20


def test_media_get_cheaper_and_slower_the_further_away() -> None:
    dram, cxl, disk = (CATALOGUE.get("Medium", name).spec for name in ("ddr5", "cxl-dram", "nvme-gen4"))
    assert dram.read_bytes_per_s > cxl.read_bytes_per_s > disk.read_bytes_per_s
    assert dram.usd_per_gib_hour > cxl.usd_per_gib_hour > disk.usd_per_gib_hour
    assert dram.latency_s < cxl.latency_s < disk.latency_s


@pytest.mark.parametrize("name", CATALOGUE.names("Deployment"))
def test_a_deployment_has_no_problem(name: str) -> None:
    checkup = load_any(CATALOGUE.locate("Deployment", name), catalogue=CATALOGUE)
    assert checkup.problems == ()


@pytest.mark.parametrize("name", CATALOGUE.names("Study"))
def test_a_study_has_no_problem_once_its_trace_is_there(name: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("{}\n")
    settings = [f"spec.workload.trace={trace}"]
    checkup = load_any(CATALOGUE.locate("Study", name), settings, CATALOGUE)
    assert checkup.problems == ()


def test_the_quickstart_needs_nothing_from_elsewhere() -> None:
    checkup = load_any(CATALOGUE.locate("Study", "quickstart"), catalogue=CATALOGUE)
    assert checkup.problems == ()


@pytest.mark.parametrize("name", CATALOGUE.names("Model"))
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8, 16, 32])
def test_a_split_is_refused_where_the_rule_says_so_and_nowhere_else(name: str, degree: int) -> None:
    from hisearch.latency.sharding import InvalidParallelism, Parallelism, shard

    model = CATALOGUE.get("Model", name).spec
    problem = next(split_problems(model, Parallelism(degree)), None)
    if problem is None:
        assert shard(model, degree).heads * degree == model.attention_heads
        return
    with pytest.raises(InvalidParallelism, match=re.escape(problem.message)) as caught:
        shard(model, degree)
    assert caught.value.key == problem.key
