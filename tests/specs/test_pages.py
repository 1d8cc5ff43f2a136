"""Pages that engines keep for models with sparse attention are the default everywhere; an explicit size stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hisearch
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.export.servers.roles import server_options_text
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.stages.execution import groups
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.errors import SpecError

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {{name: pages}}
spec:
  model: {model}
  pools: [{{accelerator: h200, tensor_parallel: 8, engine: {{name: {engine}{more}}}}}]
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def deployment(model: str, engine: str, more: str = "", *settings: str) -> ResolvedDeployment:
        path = tmp_path / "pages.yaml"
        path.write_text(DEPLOYMENT.format(model=model, engine=engine, more=more), encoding="utf-8")
        return load_deployment(path, settings)

    return deployment


@pytest.mark.parametrize(("engine", "default_tokens"), [("vllm", 16), ("sglang", 1), ("trtllm", 32)])
def test_sparse_attention_has_pages_of_64_tokens(load: Any, engine: str, default_tokens: int) -> None:
    sizes = [load(model, engine).deployment.pool.engine.page_size for model in ("deepseek-v3.2", "glm-5", "qwen3-32b")]
    assert sizes == [64, 64, default_tokens]
    assert load("deepseek-v3.2", engine, ", page_tokens: 32").deployment.pool.engine.page_size == 32


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--block-size"), ("sglang", "--page-size")])
def test_exports_say_so(load: Any, build_launch: Any, engine: str, flag: str) -> None:
    assert (flag, "64") in engine_flags(build_launch(load("deepseek-v3.2", engine)))


def test_the_options_file_says_so(load: Any, build_launch: Any) -> None:
    assert "tokens_per_block: 64\n" in server_options_text(build_launch(load("glm-5", "trtllm")))


@pytest.fixture
def build_launch() -> Any:
    def build(resolved: ResolvedDeployment) -> Launch:
        pool = resolved.deployment.pool
        return Launch(pool, resolved.model.spec, resolved.accelerators[pool.accelerator].spec, 400_000)

    return build


def test_what_no_longer_goes_with_them_is_refused_by_key(load: Any) -> None:
    settings = (
        "spec.pools.0.tiers=[{medium: ddr5, gib: 64}]",
        "spec.pools.0.movement={kv_connector: lmcache, chunk_tokens: 96}",
    )
    assert load("qwen3-32b", "vllm", "", *settings)
    with pytest.raises(SpecError, match=r"96 is no multiple of the engine's pages of 64 tokens.*sparse attention"):
        load("deepseek-v3.2", "vllm", "", *settings)


def test_a_search_builds_workers_with_them() -> None:
    def pages(*settings: str) -> set[tuple[str, int]]:
        study = hisearch.load_study("quickstart", settings)
        problem = study.problem(Simulation(study.world()))
        assert problem.page_tokens("trtllm") == problem.kept_page_tokens
        pools = [pool for group_pools, _ in groups(problem) for pool in group_pools]
        return {(pool.engine.name, pool.engine.page_size) for pool in pools}

    sparse = "spec.model=deepseek-v3.2"
    assert pages() == {("vllm", 16), ("sglang", 1)}
    assert pages(sparse) == {("vllm", 64), ("sglang", 64)}
    setting = "spec.space={execution: {accelerators: [h200], engines: [sglang], sglang_page_tokens: 16}}"
    assert pages(sparse, setting) == {("sglang", 16)}
