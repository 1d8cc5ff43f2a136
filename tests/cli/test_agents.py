"""Populations of agents on the command line."""

import json
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
    assert 0 < use["resident_calls"] < 200
    adapter = adapter_elements(Catalogue().get("Model", "qwen2.5-7b").spec, AdaptersSpec(rank=16), 1)
    assert use["host_bytes"] == 30 * adapter * 2
    assert "2.26 GiB in host memory" in ran.out
    plain = hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--set", "spec.pools.0.agents=null", "--json")
    assert plain.json["objects"] == []


def test_calls_that_need_no_object_are_no_hits(hisearch: Hisearch, workdir: Path) -> None:
    """One agent of four has an adapter: 5 of 20 calls need it, one loads it, and of the others 4 had it."""
    written(workdir)
    rows = "".join(f"{10 * k},agent {k % 4},{'plan' if k % 4 == 0 else ''},50,5\n" for k in range(20))
    (workdir / "own.csv").write_text(f"at,who,lora,in,out\n{rows}")
    columns = "arrival_s=at,input_tokens=in,output_tokens=out,agent=who,adapter=lora"
    words = ("simulate", "one.yaml", "--trace", "own.csv", "--columns", columns, "--adapters", "plan=8")
    (use,) = hisearch(*words, "--json").json["objects"]
    assert [use[name] for name in ("calls", "object_calls", "resident_calls", "loads")] == [20, 5, 4, 1]
    said = " ".join(hisearch(*words).out.split())
    assert "80.0 % of the 5 of 20 calls that need any found theirs loaded; 1 load, 0 ahead" in said
    none = hisearch(*words[:5], columns.partition(",adapter")[0])
    assert "no call needs any; 0 loads" in " ".join(none.out.split())


def test_a_population_is_written_as_a_trace_that_replays_to_the_same(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    assert hisearch("trace", "generate", "society.yaml", "-o", "society.jsonl").code == 0
    first, again = (
        hisearch("simulate", "one.yaml", "--trace", trace, "--json").json for trace in ("society.yaml", "society.jsonl")
    )
    for key in ("metrics", "objects", "hints"):
        assert first[key] == again[key]
    refused = hisearch("trace", "generate", "society.yaml", "-o", "out.jsonl", "--requests", "5")
    assert refused.code == 1
    assert "spec.agents.calls" in refused.err


def test_predictions_are_judged_in_words(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    ran = hisearch("simulate", "one.yaml", "--trace", "society.yaml")
    assert "of pairs ordered right" in ran.out
    assert "of a load" in ran.out


def test_adapters_without_a_place_are_doubted_first(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    plain = hisearch(
        "simulate", "one.yaml", "--trace", "society.yaml", "--set", "spec.pools.0.agents=null", "--json"
    ).json
    assert "have 30 adapters" in plain["warnings"][0]
    ran = hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--set", "spec.pools.0.agents=null", "-q")
    said = " ".join(ran.out.split())
    assert "Mind: the workload's agents have 30 adapters" in said.partition("Latency of requests")[0]
    rows = [{"format": "hisearch-trace", "version": 1}]
    rows += [{"arrival_s": k, "input_tokens": 50, "output_tokens": 5, "tenant": k % 3} for k in range(6)]
    (workdir / "open.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = hisearch("simulate", "one.yaml", "--trace", "open.jsonl", "--json").json
    assert "says nothing of adapters" in given["warnings"][0]


def test_places_for_adapters_that_nobody_has_is_doubted_first(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    table = "at,who,lora,in,out\n" + "".join(f"{k},agent {k % 3},plan,50,5\n" for k in range(6))
    (workdir / "own.csv").write_text(table)
    columns = "arrival_s=at,input_tokens=in,output_tokens=out,agent=who"
    ran = hisearch("simulate", "one.yaml", "--trace", "own.csv", "--columns", columns, "-q")
    said = " ".join(ran.out.split()).partition("Latency of requests")[0]
    assert "Mind: the deployment has places for adapters, and the workload's 3 agents name none" in said
    given = hisearch("simulate", "one.yaml", "--trace", "own.csv", "--columns", columns, "--json").json
    assert any("name none" in warning for warning in given["warnings"])
    assert given["objects"][0]["loads"] == 0
    named = ("--columns", f"{columns},adapter=lora", "--adapters", "plan=8", "--json")
    ran = hisearch("simulate", "one.yaml", "--trace", "own.csv", *named)
    assert not any("name none" in warning for warning in ran.json["warnings"])
    assert hisearch("simulate", "one.yaml", "--trace", "own.csv", *named, "--requests", "rows.csv").code == 0
    assert (workdir / "rows.csv").read_text().splitlines()[2].split(",")[:2] == ["1", "agent 1"]
    assert ran.json["objects"][0]["loads"] >= 1
    for adapters, problem in (("plan=x", "NAME=RANK"), ("plan=8,plan=16", "given twice"), ("other", "no call asks")):
        refused = hisearch("trace", "import", "own.csv", "-o", "a.jsonl", *named[:2], "--adapters", adapters)
        assert refused.code in (1, 2)
        assert problem in " ".join(refused.err.split())


STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: team}
spec:
  model: qwen2.5-7b
  workload: {trace: own.yaml}
  slo:
    terms:
    - {metric: e2e_s, percentile: 95, at_most_s: 5.0}
  space:
    execution:
      accelerators: [h100-sxm]
      engines: [sglang]
      tensor_parallel: [1]
      chunk_tokens: [2048]
      max_running_requests: [128]
      max_replicas: 1
    cache:
      tiers: []
      agents: {policies: [lru], slots: [8], adapters: {rank: 16}}
  confidence: {draws: 0, what_if: 0}
  budget: {simulations: 4, seconds: 300}
"""
OWN = """\
apiVersion: hisearch/v1
kind: Workload
metadata: {name: own}
spec:
  file:
    path: own.csv
    columns: {arrival_s: at, input_tokens: in, output_tokens: out, agent: who}
"""


def test_a_study_s_places_for_adapters_that_nobody_has_are_doubted_on_screen_and_in_the_report(
    hisearch: Hisearch, workdir: Path
) -> None:
    table = "at,who,lora,in,out\n" + "".join(f"{k},agent {k % 3},plan,50,5\n" for k in range(30))
    (workdir / "own.csv").write_text(table)
    (workdir / "team.yaml").write_text(STUDY)
    caveat = "the deployment has places for adapters, and the workload's 3 agents name none"
    for text, doubted in ((OWN, True), (OWN.replace("agent: who}", "agent: who, adapter: lora}"), False)):
        (workdir / "own.yaml").write_text(text)
        ran = hisearch("run", "team.yaml", "--out", f"runs/{doubted}", "-q")
        assert ran.code == 0
        assert (f"Workload and deployment differ: {caveat}" in " ".join(ran.out.split())) is doubted
        report = " ".join((workdir / "runs" / str(doubted) / "report.html").read_text().split())
        assert ("places for adapters, and the workload" in report) is doubted


def test_a_load_on_a_population_is_refused(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    ran = hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--load", "2")
    assert ran.code in (1, 2)
    assert "closed loop" in ran.err


def test_a_rank_above_the_deployment_s_is_refused_and_a_smaller_one_loads_sooner(
    hisearch: Hisearch, workdir: Path
) -> None:
    written(workdir)
    loads = []
    for ranks in ("[16]", "[8]", "[8, 32]"):
        text = POPULATION.replace("calls: 200", f"calls: 200\n    adapter_ranks: {ranks}")
        (workdir / "society.yaml").write_text(text)
        loads.append(hisearch("simulate", "one.yaml", "--trace", "society.yaml", "--json"))
    whole, half = (ran.json["objects"][0] for ran in loads[:2])
    assert half["load_s"] / half["loads"] < 0.6 * whole["load_s"] / whole["loads"]
    assert loads[2].code == 1
    assert "rank 32" in loads[2].err


def test_statistics_of_a_population(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    stats = hisearch("trace", "stats", "society.yaml", "--json").json
    assert stats["requests"] == 200
    agents = stats["agents"]
    assert (agents["agents"], agents["adapters"], agents["hint_unit"]) == (30, 30, "frames")
    assert agents["calls_per_agent"]["mean"] == 200 / 30
    said = " ".join(hisearch("trace", "stats", "society.yaml").out.split())
    assert "agents 30, with 30 adapters" in said
    assert "calls 200; per agent" in said


#: A workload of six agents in the trace form: two adapters of sizes of their own, two memories, one beginning for all.
def objects_trace(workdir: Path, adapter_bytes: int, memory_bytes: int) -> None:
    rows: list[dict[str, object]] = [{"format": "hisearch-trace", "version": 1}]
    for k in range(60):
        agent, row = k % 6, {"id": f"{k}", "input_tokens": 200, "output_tokens": 20, "prefix": "world"}
        link = {"arrival_s": 0.1 * k} if k < 6 else {"previous": f"{k - 6}", "think_s": 0.5}
        names = {"agent": f"agent {agent}", "adapter": f"lora {agent % 2}", "memory": f"index {agent % 2}"}
        sizes = {"adapter_bytes": adapter_bytes, "memory_bytes": memory_bytes, "prefix_tokens": 128}
        rows.append(row | link | names | sizes)
    (workdir / "objects.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_objects_of_the_trace_form_load_by_their_bytes_and_replay_to_the_same(
    hisearch: Hisearch, workdir: Path
) -> None:
    text = DEPLOYMENT.replace("slots: 8", "slots: 1, objects: [{name: index, mib: 64, per: memory}]")
    (workdir / "one.yaml").write_text(text)
    whole = adapter_elements(Catalogue().get("Model", "qwen2.5-7b").spec, AdaptersSpec(rank=16), 1) * 2
    uses = []
    for share in (1.0, 0.25):
        objects_trace(workdir, int(whole * share), int(64 * 2**20 * share))
        assert hisearch("trace", "import", "objects.jsonl", "-o", "again.jsonl").code == 0
        first, again = (
            hisearch("simulate", "one.yaml", "--trace", trace, "--json").json
            for trace in ("objects.jsonl", "again.jsonl")
        )
        for key in ("metrics", "objects", "hints"):
            assert first[key] == again[key]
        assert not any("deployment" in warning for warning in first["warnings"])
        uses.append(first["objects"][0])
    # Two adapters and two memories, each of its own place.
    assert uses[0]["host_bytes"] == 2 * whole + 2 * 64 * 2**20
    assert uses[0]["loads"] >= 4
    each = [use["loaded_bytes"] / use["loads"] for use in uses]
    assert 0.24 < each[1] / each[0] < 0.26
    stats = hisearch("trace", "stats", "objects.jsonl", "--json").json
    assert (stats["agents"]["memories"], stats["ideal_hit_tokens"]) == (
        2,
        58 * 128,
    )  # each adapter's first call finds nothing
    objects_trace(workdir, int(whole * 1.5), 1)
    refused = hisearch("simulate", "one.yaml", "--trace", "objects.jsonl")
    assert refused.code == 1
    assert "an adapter of the workload takes" in " ".join(refused.err.split())


def test_memories_without_a_place_and_places_without_memories_are_doubted(hisearch: Hisearch, workdir: Path) -> None:
    written(workdir)
    objects_trace(workdir, 1, 1)
    assert "have 2 memories" in " ".join(hisearch("simulate", "one.yaml", "--trace", "objects.jsonl").out.split())
    (workdir / "one.yaml").write_text(
        DEPLOYMENT.replace("slots: 8", "slots: 8, objects: [{name: index, mib: 64, per: memory}]")
    )
    ran = hisearch("simulate", "one.yaml", "--trace", "society.yaml")
    said = " ".join(ran.out.split()).partition("Latency of requests")[0]
    assert "Mind: the deployment has places for memories" in said
