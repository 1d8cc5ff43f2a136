"""Routers of platforms: their own exports have the simulated settings, others the nearest policy and say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.engines.launch import ExportError
from hisearch.export.expressible import narrowed
from hisearch.export.platforms.aibrix import gateway_values
from hisearch.export.platforms.dynamo import router_words
from hisearch.export.platforms.llm_d import scheduler_values
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.errors import KeyedError
from hisearch.specs.studies.search_space import RoutingSpace
from tests.export import forms
from tests.export.command_lines import parse
from tests.export.conftest import export_all
from tests.search.fakes import make_problem


def spec(**router: Any) -> RouterSpec:
    return RouterSpec.model_validate(router)


def picker_config(router: RouterSpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """The scheduler's configuration, and the other values of its chart."""
    values = scheduler_values(router)["inferenceExtension"]
    config = yaml.safe_load(values["pluginsCustomConfig"][values["pluginsConfigFile"]])
    forms.check(config, forms.ENDPOINT_PICKER)
    return config, values


def test_dynamo_s_frontend_has_the_simulated_cost() -> None:
    by_events = parse("dynamo-frontend", router_words(spec(policy="dynamo_kv", overlap_weight=2.5)))
    assert by_events == {
        "--router-mode": ["kv"],
        "--router-kv-overlap-score-weight": ["2.5"],
        "--router-temperature": ["0"],
        "--router-kv-events": [],
    }
    router = spec(policy="dynamo_kv", block_tracking="approximate", router_ttl_s=60.0, router_temperature=0.25)
    approximate = parse("dynamo-frontend", router_words(router))
    assert approximate["--router-ttl-secs"] == ["60"]
    assert approximate["--router-temperature"] == ["0.25"]
    assert "--no-router-kv-events" in approximate


@pytest.mark.parametrize("policy", ["random", "round_robin", "power_of_two", "cache_aware"])
def test_dynamo_s_frontend_takes_the_other_policies(policy: str) -> None:
    assert parse("dynamo-frontend", router_words(spec(policy=policy)))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_workers_tell_dynamo_s_router_of_their_blocks(
    engine: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    events = {}
    for tracking in ("events", "approximate"):
        router = {"policy": "dynamo_kv", "block_tracking": tracking}
        deployment = build_deployment(engine={"name": engine}, router=router)
        export_all(deployment, build_model(), build_accelerator(), tmp_path / tracking)
        graph = list(yaml.safe_load_all((tmp_path / tracking / "dynamo/graph.yaml").read_text()))[-1]
        forms.check(graph, forms.DYNAMO)
        args = graph["spec"]["services"]["Worker"]["extraPodSpec"]["mainContainer"]["args"]
        events[tracking] = [word for word in args if "kv-events-config" in word or "publish-events" in word]
        if engine != "trtllm" and tracking == "events":
            assert json.loads(args[args.index("--kv-events-config") + 1])["publisher"] == "zmq"
    assert len(events["events"]) == 1
    assert events["approximate"] == []


def test_llm_d_s_scheduler_has_the_simulated_scores() -> None:
    config, values = picker_config(spec(policy="endpoint_picker", prefix_weight=4.0))
    (profile,) = config["schedulingProfiles"]
    assert profile["plugins"] == [
        {"pluginRef": "queue-scorer", "weight": 2.0},
        {"pluginRef": "kv-cache-utilization-scorer", "weight": 2.0},
        {"pluginRef": "prefix-cache-scorer", "weight": 4.0},
        {"pluginRef": "max-score-picker"},
    ]
    assert [plugin["type"] for plugin in config["plugins"]] == [plugin["pluginRef"] for plugin in profile["plugins"]]
    assert config["plugins"][2]["parameters"] == {"autoTune": True, "maxPrefixBlocksToMatch": 256}
    assert values["flags"] == {"refresh-metrics-interval": "50ms"}


def test_llm_d_s_scheduler_has_all_that_is_not_usual() -> None:
    config, _ = picker_config(
        spec(
            policy="endpoint_picker", queue_weight=0.0, running_weight=1.0, active_requests_weight=2.0,
            no_hit_weight=0.5, picker="weighted_random", block_tokens=64, lru_capacity_blocks=1000,
        )
    )  # fmt: skip
    assert [plugin["type"] for plugin in config["plugins"]] == [
        "kv-cache-utilization-scorer", "prefix-cache-scorer", "running-requests-size-scorer", "active-request-scorer",
        "no-hit-lru-scorer", "weighted-random-picker",
    ]  # fmt: skip
    assert config["plugins"][1]["parameters"] == {
        "autoTune": False, "maxPrefixBlocksToMatch": 256, "blockSizeTokens": 64, "lruCapacityPerServer": 1000,
    }  # fmt: skip


@pytest.mark.parametrize("policy", ["dynamo_kv", "endpoint_picker", "prefix_cache"])
def test_other_exports_get_the_nearest_policy_and_say_so(
    policy: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    export_all(build_deployment(router={"policy": policy}), build_model(), build_accelerator(), tmp_path)
    assert "--policy cache_aware" in (tmp_path / "sglang/run.sh").read_text()
    readme = (tmp_path / "README.md").read_text()
    assert f"has no {policy}: where it is started here, it was given cache_aware" in readme
    assert f"simulated behind a router with `{policy}`" in readme
    assert (tmp_path / "llm-d/scheduler-values.yaml").exists() == (policy == "endpoint_picker")
    assert (tmp_path / "dynamo").exists() == (policy == "dynamo_kv")
    assert (tmp_path / "aibrix").exists() == (policy == "prefix_cache")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_production_stack_s_router_is_in_front(
    engine: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    deployment = build_deployment(engine={"name": engine}, router={"policy": "prefix_aware"})
    export_all(deployment, build_model(), build_accelerator(), tmp_path)
    (router,) = (
        container
        for manifest in yaml.safe_load_all((tmp_path / "kubernetes/manifests.yaml").read_text())
        if manifest["kind"] == "Deployment"
        for container in manifest["spec"]["template"]["spec"]["containers"]
        if container["name"] == "router"
    )
    assert (router["image"], router["command"]) == ("lmcache/lmstack-router:latest", ["vllm-router"])
    flags = parse("production-stack", router["args"])
    assert (flags["--service-discovery"], flags["--routing-logic"]) == (["k8s"], ["prefixaware"])
    assert flags["--k8s-port"] == flags["--port"]

    service = yaml.safe_load((tmp_path / "compose/compose.yaml").read_text())["services"]["router"]
    assert service["entrypoint"] == ["vllm-router"]
    events = parse("production-stack", service["command"])
    (urls,), (models,) = events["--static-backends"], events["--static-models"]
    assert len(urls.split(",")) == len(models.split(",")) == deployment.pool.replicas > 1
    assert models.startswith("${MODEL:-")

    script = (tmp_path / engine / "run.sh").read_text()
    assert "vllm-router" in script
    assert ",".join(["$MODEL"] * deployment.pool.replicas) in script
    assert not (tmp_path / "dynamo").exists()
    assert "behind production-stack's router 0.1.11 with `prefix_aware`" in (tmp_path / "README.md").read_text()


def test_production_stack_s_router_has_one_size_of_chunks(
    build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    deployment = build_deployment(router={"policy": "prefix_aware", "chunk_characters": 64})
    with pytest.raises(ExportError, match="no flag for chunk_characters: 64"):
        export_all(deployment, build_model(), build_accelerator(), tmp_path)


#: ``routingLogic`` that the chart's schema lists.
LOGICS = {"roundrobin", "session", "prefixaware", "kvaware", "disaggregated_prefill"}


@pytest.mark.parametrize("policy", ["round_robin", "prefix_aware", "consistent_hashing"])
def test_production_stack_s_chart_has_the_model_and_the_router(
    policy: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    deployment = build_deployment(engine={"name": "vllm"}, router={"policy": policy})
    export_all(deployment, build_model(), build_accelerator(), tmp_path)
    values = yaml.safe_load((tmp_path / "production-stack/values.yaml").read_text())
    forms.check(values, forms.PRODUCTION_STACK)
    router, (model,) = values["routerSpec"], values["servingEngineSpec"]["modelSpec"]
    assert router["routingLogic"] in LOGICS
    assert ("sessionKey" in router) == (router["routingLogic"] == "session") == (policy == "consistent_hashing")
    assert model["replicaCount"] == deployment.pool.replicas
    assert model["resources"]["limits"]["nvidia.com/gpu"] == str(deployment.pool.tensor_parallel)
    parsed = parse("vllm", model["vllmConfig"]["extraArgs"])
    assert "--port" not in parsed
    assert parsed["--tensor-parallel-size"] == [str(model["vllmConfig"]["tensorParallelSize"])]
    script = (tmp_path / "vllm/run.sh").read_text()
    assert ("--session-key x-session-id" in script) == (policy == "consistent_hashing")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": {"name": "sglang"}, "router": {"policy": "prefix_aware"}}, "starts vLLM, not sglang"),
        ({"engine": {"name": "vllm"}}, "has nothing like cache_aware"),
    ],
)
def test_what_production_stack_s_chart_lacks_is_said(
    changes: Any, reason: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    export_all(build_deployment(**changes), build_model(), build_accelerator(), tmp_path)
    assert not (tmp_path / "production-stack").exists()
    assert reason in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_aibrix_finds_the_pods_and_its_gateway_chooses_as_simulated(
    engine: str, build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    router = {"policy": "prefix_cache", "block_characters": 128, "imbalance_requests": 16, "deviation_factor": 2}
    deployment = build_deployment(engine={"name": engine}, router=router)
    export_all(deployment, build_model(), build_accelerator(), tmp_path)
    values = yaml.safe_load((tmp_path / "aibrix/gateway-values.yaml").read_text())
    forms.check(values, forms.AIBRIX)
    assert values["gatewayPlugin"]["container"]["envs"] == {
        "ROUTING_ALGORITHM": "prefix-cache",
        "AIBRIX_PREFIX_CACHE_TOKENIZER_TYPE": "character",
        "AIBRIX_PREFIX_CACHE_BLOCK_SIZE": "128",
        "AIBRIX_PREFIX_CACHE_BLOCK_NUMBER": "200000",
        "AIBRIX_PREFIX_CACHE_EVICTION_DURATION_MINS": "20",
        "AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT": "16",
        "AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR": "2",
    }
    workers, *_, service = yaml.safe_load_all((tmp_path / "aibrix/manifests.yaml").read_text())
    name = service["metadata"]["name"]
    labels = workers["spec"]["template"]["metadata"]["labels"]
    assert labels == {
        "model.aibrix.ai/name": name, "model.aibrix.ai/port": "8000", "model.aibrix.ai/engine": engine,
    }  # fmt: skip
    assert workers["spec"]["replicas"] == deployment.pool.replicas
    (container,) = workers["spec"]["template"]["spec"]["containers"]
    words = container["args"][container["args"].index("$(MODEL)") + 1 :]
    assert parse(engine, words)["--served-model-name"] == [name]
    assert "routing-strategy: prefix-cache" in (tmp_path / "aibrix/README.md").read_text()
    validator = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in yaml.safe_load_all((tmp_path / "aibrix/manifests.yaml").read_text()):
        validator.validate(manifest, "1.30", strict=True)


def test_aibrix_s_gateway_forgets_after_whole_minutes() -> None:
    with pytest.raises(ExportError, match=r"whole minutes, not after 90\.0 s"):
        gateway_values(spec(policy="prefix_cache", index_ttl_s=90.0))


def test_an_exportable_space_keeps_them() -> None:
    space = make_problem().space
    routing = RoutingSpace(policies=["kv_aware", "dynamo_kv", "endpoint_picker", "prefix_aware", "prefix_cache"])
    kept = narrowed(space.model_copy(update={"routing": routing})).routing.policies
    assert kept == ["dynamo_kv", "endpoint_picker", "prefix_aware", "prefix_cache"]
    with pytest.raises(KeyedError, match="no router that is exported has kv_aware"):
        narrowed(space.model_copy(update={"routing": RoutingSpace(policies=["kv_aware"])}))
