"""A Deployment of what servers say of themselves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hisearch.observe.reading import Facts
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.checkpoints import find_checkpoint

#: Words of GPUs' names, as drivers tell them, that tell accelerators of the catalogue -> name. The first that fits.
GPUS = (
    (r"GB300", "gb300"), (r"GB200", "gb200"), (r"B300", "b300"), (r"B200", "b200"), (r"H200", "h200"),
    (r"H20-3e", "h20-3e"), (r"H20\b", "h20"), (r"H100.*(HBM3|SXM)", "h100-sxm"), (r"A100.*80GB", "a100-80gb"),
    (r"L40S", "l40s"), (r"RTX PRO 6000", "rtx-pro-6000"), (r"RTX 4090", "rtx4090"), (r"RTX A6000", "a6000"),
)  # fmt: skip


def accelerator_of(gpu: str) -> str | None:
    """Catalogue name of a GPU by its driver's name; None where it is none of the catalogue's."""
    return next((name for words, name in GPUS if re.search(words, gpu)), None)


def model_of(name: str, catalogue: Catalogue) -> str | None:
    """Catalogue name of a model by what its server was started with; None where the catalogue has none."""
    # A folder of weights is called like the model as a rule.
    checkpoint = find_checkpoint(name, catalogue) or find_checkpoint(name.rstrip("/").rpartition("/")[2], catalogue)
    return None if checkpoint is None else checkpoint.model.path.stem


def deployment_of(servers: Sequence[Facts], *, model: str, accelerator: str, profile: str = "auto") -> dict[str, Any]:
    """The section ``spec`` of a Deployment: a pool for each kind of server, a replica for each.

    Args:
        servers: at least one.
        model: name or path of the Model.
        accelerator: name or path of the Accelerator.
        profile: name or path of the LatencyProfile.
    """
    pools = [_pool(facts, accelerator) for facts in servers]
    counts = Counter(repr(pool) for pool in pools)
    kinds = list({repr(pool): pool for pool in pools}.values())
    for index, pool in enumerate(kinds):
        pool["replicas"] = counts[repr(pool)]
        pool["name"] = "main" if len(kinds) == 1 else f"servers-{index + 1}"
    return {"model": model, "profile": profile, "pools": kinds}


def unreported(servers: Sequence[Facts]) -> list[str]:
    """Settings that no server told and a simulation depends on, as sentences."""
    needed = {
        "engine.chunk_tokens": "tokens of a step",
        "engine.max_running_requests": "running requests",
        "tensor_parallel": "tensor parallelism",
    }
    missing = [words for key, words in needed.items() if any(key not in facts.settings for facts in servers)]
    title = ENGINE_TITLES[servers[0].engine]
    return [f"{title} does not tell its {', '.join(missing)}: hisearch's defaults stand in deployment.yaml"] * bool(
        missing
    )


def _pool(facts: Facts, accelerator: str) -> dict[str, Any]:
    engine: dict[str, Any] = {"name": facts.engine}
    if facts.version:
        engine["version"] = facts.version
    pool: dict[str, Any] = {"accelerator": accelerator, "engine": engine}
    for key, value in facts.settings.items():
        *sections, name = key.split(".")
        section = pool
        for inner in sections:
            section = section.setdefault(inner, {})
        section[name] = value
    if facts.lora is not None:
        pool["lora"] = dict(facts.lora)
    if facts.speculation is not None:
        engine["speculation"] = dict(facts.speculation)
    return pool
