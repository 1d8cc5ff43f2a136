"""Populations of agents on the command line."""

from pathlib import Path

from hisearch.simulate.plans.agent_memory import adapter_elements
from hisearch.specs.deployments.agent_memory import AdaptersSpec
from hisearch.specs.documents.catalogue import Catalogue
from tests.cli.conftest import Hisearch

POPULATION = """\
apiVersion: hisearch/v1
kind: Workload
metadata: {name: society}
spec:
  agents:
    kind: independent
    agents: 30
    calls: 200
    new_input: {distribution: constant, scale_tokens: 60}
    output: {distribution: constant, scale_tokens: 20}
"""

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: one}
spec:
  model: qwen2.5-7b
  profile: roofline
  pools:
  - accelerator: h100-sxm
    engine: {name: sglang}
    agents: {policy: distance, adapters: {rank: 16}, slots: 8}
"""


def written(workdir: Path) -> None:
    (workdir / "society.yaml").write_text(POPULATION)
    (workdir / "one.yaml").write_text(DEPLOYMENT)


def test_what_objects_did_is_said_in_words_and_in_json(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    ran = hisearch("simulate", "one.yaml", "--trace", "society.yaml")
    assert ran.code == 0
    assert "agents by distance, 8 slots" in ran.out
    assert "of calls found theirs" in ran.out
    (use,) = hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--json").json["objects"]
    assert use["calls"] == 200
    assert use["loads"] >= 30
    assert 0 < use["found"] < 200
    adapter = adapter_elements(Catalogue().get("Model", "qwen2.5-7b").spec, AdaptersSpec(rank=16), 1)
    assert use["host_bytes"] == 30 * adapter * 2
    assert "2.26 GiB in host memory" in ran.out
    plain = hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--set", "spec.pools.0.agents=null", "--json")
    assert plain.json["objects"] == []


def test_a_population_is_not_written_as_a_trace_file(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    ran = hisearch("trace", "generate", "society.yaml", "--out", "made.jsonl")
    assert ran.code == 1
    assert "society.yaml:5" in ran.err
    assert "no place for what its agents wait for" in ran.err
    assert not (workdir / "made.jsonl").exists()


def test_statistics_of_a_population(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    stats = hisearch("trace", "stats", "society.yaml", "--json").json
    assert stats["requests"] == 200
