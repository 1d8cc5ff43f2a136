"""Every deployment and search space that ships: what is written for it exists in today's pinned versions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from hisearch.export.deployment import export_deployment
from hisearch.export.engines.flags import ROUTER_POLICIES, TABLES, engine_flags, router_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.export.engines.releases import READ
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.documents.resolve import load_deployment, load_study
from tests.export.command_lines import parse

CATALOGUE = Catalogue(shipped_root())
STUDIES = sorted(path.stem for path in (shipped_root() / "studies").glob("*.yaml"))
#: What no launch script can say, in the words of the refusal.
REFUSED = {"qwen3-32b-mixed-autoscaled": "replicas over time are up to an autoscaler"}
#: A trace that has to be brought is of no matter here.
ANY_TRACE = ("spec.workload.trace=chat-multiturn",)


def launches(name: str) -> list[Launch]:
    resolved = load_deployment(name, ())
    return [
        Launch(pool, resolved.model.spec, resolved.accelerators[pool.accelerator].spec, 100_000)
        for pool in resolved.deployment.pools
    ]


def command_lines(folder: Path) -> Iterator[list[str]]:
    """Command and arguments of every container of the Kubernetes manifests."""
    for manifest in yaml.safe_load_all((folder / "kubernetes/manifests.yaml").read_text()):
        if manifest["kind"] == "Deployment":
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                yield container["command"] + container["args"]


def of_release(deployment: DeploymentSpec, index: int) -> DeploymentSpec:
    """The deployment on its engines' oldest or newest release whose flags were read."""
    pools = []
    for pool in deployment.pools:
        engine = pool.engine.model_copy(update={"version": READ[pool.engine.name][index]})
        pools.append(pool.model_copy(update={"engine": engine}))
    return deployment.model_copy(update={"pools": pools})


@pytest.mark.parametrize("release", [0, -1], ids=["oldest", "newest"])
@pytest.mark.parametrize("name", CATALOGUE.names("Deployment"))
def test_every_flag_of_a_shipped_deployment_exists(name: str, release: int, tmp_path: Path) -> None:
    deployment, pool_launches = load_deployment(name, ()).deployment, launches(name)
    deployment = of_release(deployment, release)
    pool_launches = [it._replace(pool=pool) for it, pool in zip(pool_launches, deployment.pools, strict=True)]
    out = tmp_path / "out"
    if name in REFUSED:
        with pytest.raises(ExportError, match=REFUSED[name]):
            export_deployment(deployment, pool_launches, out, slots=[8] * len(pool_launches))
        return
    export_deployment(deployment, pool_launches, out, slots=[8] * len(pool_launches))
    programs = {"sglang.launch_server": "sglang", "sglang_router.launch_router": "sglang-router"}
    words = list(command_lines(out))
    assert words
    for line in words:
        if line[0] == "python3":
            skipped = 5 if line[2] == "sglang.launch_server" else 3
            program = programs[line[2]]
            parse(program, line[skipped:], READ["sglang"][release] if program == "sglang" else "")
        elif line[0] == "vllm":
            parse("vllm", line[3:], READ["vllm"][release])
        elif line[0] == "trtllm-serve" and "disaggregated" not in line:
            parse("trtllm", line[2:])


def pools(study: str) -> Iterator[tuple[Any, PoolSpec]]:
    """Workers of a study's space: every engine and accelerator with each other setting's values one after the other."""
    resolved = load_study(study, ANY_TRACE)
    space = resolved.space.spec.execution
    settings = {
        "tensor_parallel": space.tensor_parallel,
        "pipeline_parallel": space.pipeline_parallel,
        "attention_data_parallel": space.attention_data_parallel,
        "expert_parallel": space.expert_parallel,
        "weight_dtype": space.weight_dtypes,
        "kv_dtype": space.kv_dtypes,
    }
    limits = {"chunk_tokens": space.chunk_tokens, "max_running_requests": space.max_running_requests}
    for accelerator, engine in itertools.product(space.accelerators, space.engines):
        for key, value in [(k, v) for k, values in (settings | limits).items() for v in values]:
            pool: dict[str, Any] = {"accelerator": accelerator, "engine": {"name": engine}}
            (pool["engine"] if key in limits else pool)[key] = value
            try:
                yield resolved, PoolSpec.model_validate(pool)
            except ValidationError:  # splits that depend on one another
                continue


@pytest.mark.parametrize("study", STUDIES)
def test_every_flag_of_a_shipped_space_exists(study: str) -> None:
    counted = 0
    for (resolved, newest), version in itertools.product(pools(study), (0, -1)):
        name = newest.engine.name
        engine = newest.engine.model_copy(update={"version": READ[name][version]})
        pool = newest.model_copy(update={"engine": engine})
        accelerator = resolved.accelerators[pool.accelerator].spec
        flags = engine_flags(Launch(pool, resolved.model.spec, accelerator, 100_000))
        parsed = parse(name, [word for flag in flags for word in flag], READ[name][version])
        assert set(parsed) <= {flag for flag, _ in TABLES[name]}
        counted += 1
    assert counted >= 12


@pytest.mark.parametrize("study", STUDIES)
def test_every_router_of_a_shipped_space_is_exported_or_refused_by_name(study: str) -> None:
    for policy in load_study(study, ANY_TRACE).space.spec.routing.policies:
        router = RouterSpec(policy=policy)
        if policy in ROUTER_POLICIES:
            parse("sglang-router", [word for flag in router_flags(router) for word in flag])
        else:
            with pytest.raises(ExportError, match=f"no policy {policy}"):
                router_flags(router)
