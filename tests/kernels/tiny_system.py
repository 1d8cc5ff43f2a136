"""Prints the fingerprint of a few tiny runs; ``test_without_jit`` runs it with the jit off."""

from __future__ import annotations

import hashlib
import itertools

from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterSpec
from tests.kernels.systems import ENGINES, POLICIES, System
from tests.reference.random_traces import TraceShape


def fingerprint() -> str:
    """Of every engine, router and tier, small enough for plain Python: each router before one engine."""
    assert len(POLICIES) >= len(ENGINES)
    digest = hashlib.sha256()
    for name, policy in zip(itertools.cycle(ENGINES), POLICIES, strict=False):
        system = System(
            seed=5,
            engine=EngineSpec.model_validate(
                {"name": name, "page_tokens": 4, "max_running_requests": 4, "chunk_tokens": 16}
            ),
            capacity_tokens=160,
            workers=2,
            router=RouterSpec.model_validate({"policy": policy}),
            shape=TraceShape(requests=15, output_tokens=40),
            host_tokens=200,
            rugged=True,
        )
        result = system.simulate()
        for values in (*result.requests.columns().values(), *result.workers.columns().values()):
            digest.update(values.tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    import numba

    print(numba.config.DISABLE_JIT, fingerprint())
