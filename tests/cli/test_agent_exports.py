"""Exports of real runs of agents: imported, replayed and searched.

``exports/langgraph.jsonl.gz``: 25 runs of a graph (a planner, three readers side by side, a critic that joins them,
twice, then a writer) under langgraph 1.2.24, as langsmith 0.15.1 sends and lists them.
``exports/opentelemetry.jsonl.gz``: 25 conversations of agents in plain Python, as opentelemetry-sdk 1.45.2 prints the
spans of its OpenAI instrumentation 2.3b0 and of the agents around. Both called a server that makes up answers. Left out
of the files are fields that no importer reads: inputs of nodes, events, the machine.
"""

from pathlib import Path

import numpy as np
import pytest

import hisearch as package
from tests.cli.conftest import Hisearch

pytestmark = pytest.mark.slow

EXPORTS = Path(__file__).parents[1] / "traces" / "exports"

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: one}
spec:
  model: qwen2.5-7b
  pools:
  - accelerator: h100-sxm
    engine: {name: sglang}
    agents: {policy: distance, distance: past}
"""

STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: team}
spec:
  model: qwen2.5-7b
  workload: {trace: agents.jsonl}
  slo:
    terms:
    - {metric: e2e_s, percentile: 95, at_most_s: 2.0}
  space:
    execution:
      accelerators: [h100-sxm, l40s]
      engines: [sglang]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 2
    cache: {tiers: []}
  confidence: {at_least: 0}
  budget: {simulations: 8, seconds: 300}
"""

#: Calls, agents, calls behind joins, calls in joins, calls that follow another. Of 150 readers one began after its
#: neighbour had ended, and so seems to have waited for it.
COUNTS = {"langgraph": (275, 150, 50, 149, 250), "opentelemetry": (225, 67, 0, 0, 200)}


@pytest.mark.parametrize("name", COUNTS)
def test_an_export_is_imported_as_it_ran(workdir: Path, hisearch: Hisearch, name: str) -> None:
    ran = hisearch("trace", "import", EXPORTS / f"{name}.jsonl.gz", "-o", "agents.jsonl")
    assert f"{COUNTS[name][0]} requests" in ran.out
    trace = package.load_trace("agents.jsonl")
    agents = trace.agents
    assert agents is not None
    assert COUNTS[name] == (
        len(trace), len(agents.adapter), (agents.behind >= 0).sum(), (agents.gate >= 0).sum(),
        (trace.arrays.previous >= 0).sum(),
    )  # fmt: skip
    assert trace.digest == package.load_trace(EXPORTS / f"{name}.jsonl.gz").digest


@pytest.mark.parametrize("name", COUNTS)
def test_an_export_is_replayed_in_a_closed_loop_and_searched(workdir: Path, hisearch: Hisearch, name: str) -> None:
    hisearch("trace", "import", EXPORTS / f"{name}.jsonl.gz", "-o", "agents.jsonl")
    (workdir / "one.yaml").write_text(DEPLOYMENT)
    (workdir / "team.yaml").write_text(STUDY)
    fast, slow = (
        package.simulate_deployment("one.yaml", "agents.jsonl", overrides=[f"spec.pools.0.accelerator={gpu}"])
        for gpu in ("h100-sxm", "l40s")
    )
    trace = package.load_trace("agents.jsonl")
    follows = trace.arrays.previous >= 0
    assert np.isfinite(fast.result.requests.finish_s).all()
    assert fast.result.hints is not None
    np.testing.assert_array_less(fast.result.requests.arrival_s[follows], slow.result.requests.arrival_s[follows])
    simulated = hisearch("run", "team.yaml", "--json", "-q")
    assert simulated.code == 0
    assert simulated.json["recommendation"]["metrics"]["usd_per_hour"] > 0
