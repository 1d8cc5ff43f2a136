"""Settings that an engine does not read, KV between engines, and a fabric that nothing crosses."""

from __future__ import annotations

from pathlib import Path

import pytest

import hisearch
from hisearch.specs.checks.setting_notes import setting_notes
from hisearch.specs.deployments.engine_settings import UNREAD
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace

STATED = {
    "schedule_conservativeness": "0.3", "max_prefill_tokens": "512", "mixed_chunk": "true",
    "long_prefill_tokens": "64", "watermark": "0.3", "reserve_full_prompt": "false",
    "swa_full_tokens_ratio": "0.5", "mamba_full_memory_ratio": "0.5",
}  # fmt: skip
TRACE = {
    "requests": 60,
    "arrivals": {"process": "poisson", "rate_rps": 40.0},
    "first_input": {"distribution": "constant", "scale_tokens": 3000},
    "output": {"distribution": "constant", "scale_tokens": 20},
}


def written(folder: Path, engine: str, more: str = "") -> Path:
    path = folder / "d.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  model: llama-3.1-8b\n"
        f"  profile: roofline\n{more}  pools:\n    - {{accelerator: h100-sxm, engine: {{{engine}}}}}\n"
    )
    return path


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_a_setting_that_the_engine_does_not_read_is_noted_and_changes_nothing(name: str, tmp_path: Path) -> None:
    trace = compile_trace(generate_trace(GeneratorSpec.model_validate(TRACE)), "t")
    plain = hisearch.simulate_deployment(written(tmp_path, f"name: {name}"), trace)
    assert not setting_notes(plain.resolved)
    for setting in UNREAD[name]:  # type: ignore[index]
        stated = written(tmp_path, f"name: {name}, {setting}: {STATED[setting]}")
        run = hisearch.simulate_deployment(stated, trace)
        (note,) = setting_notes(run.resolved)
        assert note.key == f"spec.pools.0.engine.{setting}"
        assert note.message.endswith("has none; it changes nothing")
        assert run.metrics == plain.metrics


def test_a_fabric_that_nothing_crosses_is_left_alone(tmp_path: Path) -> None:
    trace = compile_trace(generate_trace(GeneratorSpec.model_validate(TRACE)), "t")
    more = "  transfer: {fabric: ib-ndr-400}\n"
    run = hisearch.simulate_deployment(written(tmp_path, "name: vllm", more), trace)
    assert run.metrics == hisearch.simulate_deployment(written(tmp_path, "name: vllm"), trace).metrics


def test_kv_for_another_engine_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "pd.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  model: llama-3.1-8b\n"
        "  profile: roofline\n  transfer: {fabric: ib-ndr-400}\n  pools:\n"
        "    - {name: p, role: prefill, accelerator: h100-sxm, engine: {name: sglang}}\n"
        "    - {name: d, role: decode, accelerator: h100-sxm, engine: {name: vllm}}\n"
    )
    (note,) = setting_notes(load_deployment(path))
    assert note.key == "spec.pools.1.engine.name"
    assert note.message.startswith("vllm, but pool p runs sglang")
    path.write_text(path.read_text().replace("name: sglang", "name: vllm"))
    assert not setting_notes(load_deployment(path))


@pytest.mark.parametrize(
    ("model", "ranks", "engine", "said"),
    [
        ("gemma-4-31b", 4, "name: vllm", "blocks of 16 tokens in layers with a window, of 32 in the others"),
        ("gemma-4-31b", 16, "name: vllm", "blocks of 16 tokens in layers with full attention, of 32 in the others"),
        ("gemma-4-31b", 8, "name: vllm", ""),  # as many bytes in both kinds of layers
        ("gemma-4-31b", 4, "name: sglang", ""),
        ("gemma-3-27b", 1, "name: vllm", ""),
    ],
)
def test_blocks_of_several_sizes_are_noted(tmp_path: Path, model: str, ranks: int, engine: str, said: str) -> None:
    settings = (f"spec.model={model}", f"spec.pools.0.tensor_parallel={ranks}")
    notes = setting_notes(load_deployment(written(tmp_path, engine), settings))
    assert [said in note.message for note in notes] == ([True] if said else [])
