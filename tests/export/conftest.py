"""Specs that the export tests build deployments from."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from hisearch.export.context import ExportContext
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import Launch
from hisearch.specs.base import Price, Provenance
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.hardware import AcceleratorSpec, LinkSpec
from hisearch.specs.models.model import ModelSpec

_DAY = datetime.date(2026, 1, 1)


def make_model(**changes: Any) -> ModelSpec:
    """A 64-layer GQA model with 8 KV heads in bf16."""
    values: dict[str, Any] = {
        "huggingface_id": "Qwen/Qwen3-32B",
        "layers": 64,
        "hidden_size": 5120,
        "attention_heads": 64,
        "kv_heads": 8,
        "head_dim": 128,
        "intermediate_size": 25600,
        "vocab_size": 151936,
        "max_context_tokens": 40960,
        "provenance": Provenance(source="test", as_of=_DAY),
    }
    return ModelSpec(**(values | changes))


def make_accelerator(*, fp8: bool = True) -> AcceleratorSpec:
    """An 80 GB accelerator, with or without fp8 arithmetic."""
    peak = {"bf16": 989e12} | ({"fp8": 1979e12} if fp8 else {})
    return AcceleratorSpec(
        memory_bytes=80e9,
        memory_bandwidth_bytes_per_s=3.35e12,
        peak_flops=peak,
        peer_link=LinkSpec(kind="nvlink", bandwidth_bytes_per_s=450e9, latency_s=3e-6),
        host_link=LinkSpec(kind="pcie", bandwidth_bytes_per_s=55e9, latency_s=5e-6),
        idle_w=70,
        active_w=700,
        price=Price(usd_per_hour=2.5, source="test", as_of=_DAY),
        provenance=Provenance(source="test", as_of=_DAY),
    )


def make_deployment(
    *,
    engine: dict[str, Any] | None = None,
    pool: dict[str, Any] | None = None,
    router: dict[str, Any] | None = None,
) -> DeploymentSpec:
    """Three SGLang replicas behind a cache-aware router, with what the test changes."""
    return DeploymentSpec.model_validate(
        {
            "model": "qwen3-32b",
            "pools": [
                {
                    "accelerator": "h100-sxm",
                    "tensor_parallel": 2,
                    "replicas": 3,
                    "engine": {"name": "sglang"} | (engine or {}),
                }
                | (pool or {})
            ],
            "router": {"policy": "cache_aware"} | (router or {}),
        }
    )


def export_all(
    deployment: DeploymentSpec,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    out: Path,
    slots: int = 8,
    reach: int | None = None,
    context: ExportContext | None = None,
) -> None:
    """Export a deployment whose pools have one kind of accelerator and 400,000 KV tokens a replica."""
    launches = [Launch(pool, model, accelerator, 400_000) for pool in deployment.pools]
    number = len(launches)
    reaches = [reach] * number if reach is not None else None
    export_deployment(
        deployment, launches, out, slots=[slots] * number, reaches=reaches, context=context or ExportContext()
    )


@pytest.fixture
def build_model() -> Any:
    """``make_model``."""
    return make_model


@pytest.fixture
def build_accelerator() -> Any:
    """``make_accelerator``."""
    return make_accelerator


@pytest.fixture
def build_deployment() -> Any:
    """``make_deployment``."""
    return make_deployment
