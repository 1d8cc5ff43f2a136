"""Command lines of every release whose flags were read, and what changed between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.base.engine_rules import MODELLED
from hisearch.export.context import ExportContext
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import CHANGES, READ, exported_release, is_changed, release_notice
from hisearch.specs.deployments.deployment import DeploymentSpec, EngineSpec, PoolSpec
from hisearch.specs.versions import version_key
from tests.export.command_lines import known_flags, parse
from tests.export.conftest import export_all
from tests.export.varied import RELEASES, varied, varied_deployments


@pytest.mark.parametrize("title", RELEASES)
def test_every_command_is_one_that_the_release_takes(title: str) -> None:
    engine, version = title.split("-")
    commands = varied(engine, version)
    assert len(commands) >= 16
    for words, _ in commands.values():
        parse(engine, words, version)


@pytest.mark.parametrize("title", RELEASES)
def test_every_varied_deployment_is_written_in_every_form(title: str, tmp_path: Path) -> None:
    engine, version = title.split("-")
    for number, (deployment, launches, _) in enumerate(varied_deployments(engine, version).values()):
        folder = tmp_path / str(number)
        export_deployment(deployment, launches, folder, slots=[8] * len(launches))
        assert (folder / engine / "run.sh").is_file()
        assert (folder / "kubernetes/manifests.yaml").is_file()


def test_releases_are_those_that_are_modelled() -> None:
    for engine, versions in MODELLED.items():
        assert READ[engine] == versions  # type: ignore[index]


@pytest.mark.parametrize("engine", CHANGES)
def test_changes_are_dated_named_once_and_sourced(engine: Any) -> None:
    changes = CHANGES[engine]
    assert len({change.name for change in changes}) == len(changes)
    assert [change.since for change in changes] == sorted((c.since for c in changes), key=version_key)
    for change in changes:
        assert change.since not in (READ[engine][0], "")
        assert change.before.endswith(".")
        assert change.after.endswith(".")
        oldest, newest = (EngineSpec(name=engine, version=version) for version in READ[engine])
        assert (is_changed(oldest, change.name), is_changed(newest, change.name)) == (False, True)


@pytest.mark.parametrize(
    ("engine", "version", "exported"),
    [
        ("vllm", "", "0.33.0"),
        ("vllm", "0.19.1", "0.19.1"),
        ("vllm", "0.15.1", "0.19.1"),
        ("vllm", "0.25.0", "0.25.0"),
        ("vllm", "0.40.0", "0.33.0"),
        ("vllm", "nightly", "0.33.0"),
        ("sglang", "0.5.9+serial", "0.5.9"),
        ("sglang", "0.5.10.post1", "0.5.10.post1"),
        ("trtllm", "", "1.3.0rc27"),
        ("trtllm", "1.2.0rc5", "1.2.0rc5"),
        ("trtllm", "1.0.0", "1.1.0"),
    ],
)
def test_which_release_is_exported(engine: Any, version: str, exported: str) -> None:
    assert exported_release(EngineSpec(name=engine, version=version)) == exported


def built(build: Any, model: Any, accelerator: Any, **engine: Any) -> Launch:
    return Launch(build(engine=engine).pool, model, accelerator, 400_000)


@pytest.fixture
def of(build_deployment: Any, build_model: Any, build_accelerator: Any) -> Any:
    """Builds a launch of an engine's settings."""
    return lambda **engine: built(build_deployment, build_model(), build_accelerator(), **engine)


@pytest.mark.parametrize("version", ["", "0.19.1", "0.33.0"])
def test_a_release_that_was_read_needs_no_notice(of: Any, version: str) -> None:
    assert release_notice([of(name="vllm", version=version)]) == ""
    assert release_notice([of(name="trtllm", version="1.1.0")]) == ""


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.15.1", "The deployment names vLLM 0.15.1. These files run vLLM 0.19.1, the nearest"),
        ("0.40.0", "These files run vLLM 0.33.0"),
        ("0.25.0", "The flags of vLLM 0.25.0 were not read. These are those of 0.19.1, with what is known"),
    ],
)
def test_another_release_is_noticed(of: Any, version: str, words: str) -> None:
    assert words in release_notice([of(name="vllm", version=version)])


@pytest.mark.parametrize("version", ["", "1.2.0rc5"])
def test_releases_of_tensorrt_llm_have_the_flags_of_the_one_that_was_read(of: Any, version: str) -> None:
    notice = release_notice([of(name="trtllm", version=version)])
    assert f"The flags of TensorRT-LLM {version or '1.3.0rc27'} were not read. These are those of 1.1.0" in notice


def test_a_release_between_has_the_changes_up_to_it(of: Any) -> None:
    words = {word for flag in engine_flags(of(name="vllm", version="0.25.0", prefix_caching=False)) for word in flag}
    assert "--no-enable-prefix-caching" in words
    assert ("--watermark", "0.1") in engine_flags(of(name="vllm", version="0.25.0", watermark=0.1))
    sglang = engine_flags(of(name="sglang", version="0.5.14", eviction="slru", fused_all_reduce=True))
    assert {("--radix-eviction-policy", "slru"), ("--flashinfer-allreduce-fusion-backend", "auto")} <= set(sglang)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"name": "vllm", "schedule": "edf", "ttft_targets_s": [1.0]},
            "no --scheduling-policy edf, .*; it takes fcfs or",
        ),
        ({"name": "sglang", "schedule": "edf", "ttft_targets_s": [1.0]}, "no --schedule-policy edf"),
        ({"name": "sglang", "schedule": "vtc"}, "no --schedule-policy vtc, which is simulated alone"),
        ({"name": "sglang", "schedule": "deficit"}, "no --schedule-policy deficit"),
    ],
)
def test_orders_that_no_release_has_are_not_exported(of: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        engine_flags(of(**settings))


def test_priorities_of_sglang(of: Any) -> None:
    urgent = dict(flag if len(flag) == 2 else (*flag, "") for flag in engine_flags(of(schedule="priority")))
    assert urgent["--priority-scheduling-preemption-threshold"] == "10"
    assert {"--enable-priority-scheduling", "--schedule-low-priority-values-first"} <= urgent.keys()
    assert "--prefill-max-requests" not in urgent
    settings = {"high_priority_first": True, "preemption_threshold": 3, "prefill_max_requests": 8}
    flags = engine_flags(of(schedule="lof", priority_scheduling=True, **settings))
    assert ("--schedule-low-priority-values-first",) not in flags
    assert {
        ("--enable-priority-scheduling",),
        ("--schedule-policy", "lof"),
        ("--priority-scheduling-preemption-threshold", "3"),
        ("--prefill-max-requests", "8"),
    } <= set(flags)
    plain = {flag for flag, *_ in engine_flags(of())}
    assert not {flag for flag in plain if "priorit" in flag or "prefill-max" in flag}


def test_dense_mla_has_blocks_that_fast_kernels_take(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    mla = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    model = build_model(attention="mla", mla=mla)
    deployment = build_deployment(engine={"name": "vllm"})
    flags = dict(
        flag for flag in engine_flags(Launch(deployment.pool, model, build_accelerator(), 400_000)) if len(flag) > 1
    )
    assert (flags["--block-size"], flags["--num-gpu-blocks-override"]) == ("64", str(400_000 // 64))
    export_all(deployment, model, build_accelerator(), tmp_path)
    assert "Blocks have 64 tokens, simulated with 16" in (tmp_path / "README.md").read_text()
    stated = build_deployment(engine={"name": "vllm", "page_tokens": 32})
    assert ("--block-size", "32") in engine_flags(Launch(stated.pool, model, build_accelerator(), 400_000))


@pytest.mark.parametrize("version", READ["vllm"])
def test_images_and_packages_are_of_the_release(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path, version: str
) -> None:
    deployment = build_deployment(engine={"name": "vllm", "version": version, "prefix_caching": False})
    export_all(deployment, build_model(), build_accelerator(), tmp_path, context=ExportContext())
    assert f"`pip install vllm=={version}`" in (tmp_path / "README.md").read_text()
    services = yaml.safe_load((tmp_path / "compose/compose.yaml").read_text())["services"]
    assert services["replica-0"]["image"] == f"vllm/vllm-openai:v{version}"
    # The other engine's release is the newest, whatever this one's is.
    assert f"# SGLang {READ['sglang'][-1]}:" in (tmp_path / "alternatives/sglang/run.sh").read_text()
    assert "--no-enable-prefix-caching" in (tmp_path / "dynamo/graph.yaml").read_text()


@pytest.mark.parametrize(("chunked", "longest"), [(True, "40960"), (False, "8192")])
def test_vllm_without_chunks_takes_what_a_step_holds(of: Any, chunked: bool, longest: str) -> None:
    assert ("--max-model-len", longest) in engine_flags(of(name="vllm", chunked_prefill=chunked))


_HEADS = {"key_heads": 16, "value_heads": 32, "key_head_dim": 128, "value_head_dim": 128}
_LINEAR = {"linear_attention": {"layers": 3, **_HEADS}}
_WINDOWS = {"sliding_window_tokens": 128}
_HOST, _NODE = ({"medium": "ddr5", "gib": 64, "scope": scope} for scope in ("worker", "node"))
_LMCACHE = {"movement": {"kv_connector": "lmcache"}}
_PREFILL = {"role": "prefill"}


@pytest.mark.parametrize(
    ("version", "model", "pool", "said"),
    [
        ("0.19.1", _LINEAR, {}, set()),
        ("0.19.1", _LINEAR, {"tiers": [_HOST]}, "models with linear attention do not start; .* 0.22.0 or newer"),
        ("0.19.1", _WINDOWS, {"tiers": [_HOST]}, "layers with a window keep their complete context"),
        ("0.19.1", {}, {"tiers": [_HOST]}, {"--disable-hybrid-kv-cache-manager"}),
        ("0.19.1", {}, {"tiers": [_HOST]} | _LMCACHE, {"--disable-hybrid-kv-cache-manager"}),
        ("0.19.1", {}, _PREFILL, set()),
        ("0.19.1", _LINEAR, _PREFILL, {"--no-disable-hybrid-kv-cache-manager"}),
        ("0.19.1", _WINDOWS, _PREFILL, {"--no-disable-hybrid-kv-cache-manager"}),
        ("0.19.1", _WINDOWS, _PREFILL | {"tiers": [_HOST]}, "NixlConnector, OffloadingConnector"),
        ("0.19.1", {}, _PREFILL | {"tiers": [_HOST]}, set()),
        ("0.33.0", _LINEAR, {"tiers": [_HOST]}, set()),
        ("0.33.0", _LINEAR, {"tiers": [_HOST]} | _LMCACHE, "movement.kv_connector: offload"),
        ("0.33.0", _WINDOWS, {"tiers": [_NODE]} | _LMCACHE, "LMCacheMPConnector"),
        ("0.33.0", _LINEAR, _PREFILL, set()),
        ("0.33.0", _WINDOWS, _PREFILL | {"tiers": [_HOST]}, set()),
    ],
)
def test_models_of_several_kinds_of_attention_keep_the_hybrid_manager(
    build_deployment: Any, build_model: Any, build_accelerator: Any, version: str, model: Any, pool: Any, said: Any
) -> None:
    made = build_deployment(engine={"name": "vllm", "version": version}).pool
    made = PoolSpec.model_validate(made.model_dump(mode="json") | pool)
    launch = Launch(made, build_model(**model), build_accelerator(), 400_000)
    if isinstance(said, str):
        with pytest.raises(ExportError, match=f"turns its hybrid KV cache manager off .*{said}"):
            engine_flags(launch)
    else:
        assert {flag for flag, *_ in engine_flags(launch) if "hybrid" in flag} == said


@pytest.mark.parametrize("page_tokens", [1, 8, 24])
def test_blocks_that_no_backend_takes_are_refused(
    build_deployment: Any, build_model: Any, build_accelerator: Any, page_tokens: int
) -> None:
    made = build_deployment(engine={"name": "vllm", "page_tokens": page_tokens}).pool
    with pytest.raises(
        ExportError, match=f"blocks of {page_tokens} tokens; set engine.page_tokens to a multiple of 16"
    ):
        engine_flags(Launch(made, build_model(), build_accelerator(), 400_000))


def test_pools_of_two_releases_are_refused(build_model: Any, build_accelerator: Any, tmp_path: Path) -> None:
    pools = [
        {"name": name, "accelerator": "h100-sxm", "engine": {"name": "vllm", "version": version}}
        for name, version in (("a", "0.19.1"), ("b", "0.33.0"))
    ]
    deployment = DeploymentSpec.model_validate({"model": "qwen3-32b", "pools": pools})
    with pytest.raises(ExportError, match=r"pools of vLLM 0\.19\.1 and 0\.33\.0: files are written for one release"):
        export_all(deployment, build_model(), build_accelerator(), tmp_path)


def test_deprecated_flags_are_marked() -> None:
    assert known_flags("sglang", "0.5.23")["--enable-dp-attention"]["deprecated"]
    assert "deprecated" not in known_flags("sglang", "0.5.9")["--enable-dp-attention"]
    with pytest.raises(AssertionError, match="--enable-dp-attention is deprecated"):
        parse("sglang", ["--enable-dp-attention"])
