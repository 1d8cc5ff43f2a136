"""``hisearch simulate`` and ``hisearch.simulate_deployment``."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hisearch as package
from hisearch.api.deployments import steps_off
from hisearch.simulate.engine import EngineStuck
from hisearch.specs.documents.resolve import load_deployment
from tests.cli.conftest import Hisearch


def test_a_table_for_people(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo", "interactive-chat")
    assert ran.code == 0
    for expected in ("TTFT", "TPOT", "E2E", "p99", "goodput", "prefix cache hits", "per hour", "watts", "120 finished"):
        assert expected in ran.out


def test_it_says_whether_the_verdict_stands_with_steps_off_by_their_error(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo")
    met = hisearch(*arguments, "ttft p99 < 60s, tpot p99 < 1s", "--json").json
    off, error = met["steps_off"], met["profile"]["relative_error"]
    assert (off["slower"], off["feasible"], off["relative_error"]) == (True, True, error)
    tpot, tpot_off = (terms[1]["value_s"] for terms in (met["slo"]["terms"], off["terms"]))
    assert tpot < tpot_off < tpot * (1 + 3 * error)
    # A bound between both: what holds as simulated does not within the error.
    between = f"ttft p99 < 60s, tpot p99 < {(tpot + tpot_off) / 2 * 1e3:.4f}ms"
    shown = hisearch(*arguments, between).out
    assert f"With all steps {error:.1%}".replace("%", " %") in shown
    assert "slower, the error of their profile: missed: TPOT p99" in shown
    missed = hisearch(*arguments, f"ttft p99 < 60s, tpot p99 < {tpot * 0.999 * 1e3:.4f}ms", "--json").json
    assert (missed["slo"]["feasible"], missed["steps_off"]["slower"], missed["steps_off"]["feasible"]) == (
        False, False, True,
    )  # fmt: skip
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json").json["steps_off"] is None


def test_an_engine_that_halts_with_slower_steps_misses_the_slo_then(
    hisearch: Hisearch, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halt(*_: object, **__: object) -> None:
        raise EngineStuck("comes to a halt")

    monkeypatch.setattr(steps_off, "simulate_fleet", halt)
    arguments = ("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo", "ttft p99 < 60s")
    off = hisearch(*arguments, "--json").json["steps_off"]
    assert (off["slower"], off["feasible"], off["terms"]) == (True, False, [])
    assert "slower, the error of their profile: missed." in hisearch(*arguments).out


def test_power_is_that_of_the_run_however_long_it_is_carried_on(hisearch: Hisearch, workdir: Path) -> None:
    """The table's watts and joules per token are the metrics', which a warm-up and a drain must not raise."""
    arguments = ("simulate", "pair.yaml", "--trace", "visits.yaml", "--load", 40)
    data = hisearch(*arguments, "--json").json
    table = hisearch(*arguments).out
    row = next(line for line in table.splitlines() if line.split()[:1] == ["all"]).split()
    assert float(row[1].replace(",", "")) == pytest.approx(data["metrics"]["mean_w"], rel=0.01)
    assert float(row[5].replace(",", "")) == pytest.approx(data["metrics"]["joules_per_token"], rel=0.01)
    parts, workers = data["energy"]["components"], data["workers"]
    of_accelerators = (parts["accelerators_j"] + parts["devices_j"]) / data["energy"]["total_j"]
    assert of_accelerators * data["metrics"]["mean_w"] == pytest.approx(sum(row["mean_w"] for row in workers), rel=1e-6)


def test_an_overload_is_told_with_the_test_that_found_it(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--load", 4000, "--json", "-q").json
    assert "This load is an overload: the queue grows by" in ran["steadiness"]
    assert "(Wilcoxon's signed-rank test, 99 % confidence)." in ran["steadiness"]


def test_json_is_the_librarys_result(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("--trace", "visits.yaml", "--slo", "interactive-chat", "--json", "--seed", 3, "--load", 2)
    data = hisearch("simulate", "pair.yaml", *arguments).json
    simulated = package.simulate_deployment(
        workdir / "pair.yaml", workdir / "visits.yaml", slo="interactive-chat", seed=3, load=2.0
    )
    assert data["metrics"] == simulated.metrics
    assert data["trace"]["digest"] == simulated.trace.digest
    served = len(simulated.trace)
    assert served > 120  # above its own load a workload is carried on
    assert data["steadiness"] == simulated.steadiness
    assert data["requests"] == {
        "in_flight": 0,
        "finished": served,
        "too_large": 0,
        "unreached": 0,
        "shed": 0,
        "lost": 0,
    }
    assert data["slo"]["feasible"] is simulated.feasible is True
    assert data["horizon_s"] is None
    assert data["cost"]["usd_per_hour"] == simulated.metrics["usd_per_hour"]
    workers = data["workers"]
    assert [worker["worker"] for worker in workers] == [0, 1]
    assert sum(worker["requests"] for worker in workers) == served
    requests = simulated.result.requests
    assert sum(worker["hit_tokens"] for worker in workers) == int(requests.hit_tokens.sum()) > 0
    assert sum(worker["prefill_tokens"] + worker["hit_tokens"] for worker in workers) == int(
        requests.input_tokens.sum()
    )
    mean = np.mean([worker["utilisation"] for worker in workers])
    assert mean == pytest.approx(simulated.metrics["utilisation"])
    assert all(worker["mean_w"] > simulated.result.idle_w for worker in workers)


def test_attention_groups_show_the_busiest_beside_their_mean(hisearch: Hisearch, workdir: Path) -> None:
    text = (
        (workdir / "pair.yaml")
        .read_text()
        .replace("llama-3.1-8b", "qwen3-30b-a3b")
        .replace("replicas: 2", "replicas: 1")
    )
    grouped = text.replace("engine:", "attention_data_parallel: 4\n      expert_parallel: 4\n      engine:")
    (workdir / "groups.yaml").write_text(grouped, encoding="utf-8")
    ran = hisearch("simulate", "groups.yaml", "--trace", "visits.yaml", "--json")
    assert ran.code == 0, ran.err
    (worker,), (pool,) = ran.json["workers"], ran.json["pools"]
    assert worker["utilisation"] < worker["busiest_group_utilisation"] <= 1.0
    assert pool["busiest_group_utilisation"] == worker["busiest_group_utilisation"]
    assert "of the busiest group" in hisearch("simulate", "groups.yaml", "--trace", "visits.yaml").out
    whole = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml")
    assert "of the busiest group" not in whole.out
    for row in hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json").json["workers"]:
        assert row["busiest_group_utilisation"] == row["utilisation"]


SINGLE_TOKENS = """\
apiVersion: hisearch/v1
kind: Workload
metadata: {name: single}
spec:
  file:
    path: single.csv
    format: csv
    columns: {arrival_s: at, input_tokens: prompt, output_tokens: output}
"""


def test_rejections_single_tokens_and_few_requests_are_said_in_every_view(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "single.yaml").write_text(SINGLE_TOKENS)
    (workdir / "single.csv").write_text("at,prompt,output\n0,100,1\n1,200,1\n2,900000,1\n")
    arguments = ("simulate", "pair.yaml", "--trace", "single.yaml", "--slo", "interactive-chat")
    ran = hisearch(*arguments)
    assert "Against the SLO: missed" in ran.out
    rows = [line.split() for line in ran.out.splitlines()]
    assert any(row[:1] == ["Rejected"] and "(33.3" in row and row[-1] == "missed" for row in rows)
    assert ["TPOT", "p99", "-", "50", "ms", "-", "met"] in rows
    assert ["TPOT", "-", "-", "-", "-", "-"] in rows
    notes = (
        "TTFT p99: rests on 2 requests; of fewer than 100, percentile 99 is little more than the slowest one",
        "TPOT p99: undefined, as no request has a second output token; it holds",
        "Rejected: 1 of 3 requests rejected: 1 with more tokens, prompt and declared output together, than "
        "the model's window of 131,072 (`hisearch trace import --max-tokens 131072` leaves them out)",
    )
    assert all(note in ran.out and f"warning: {note}" in ran.err for note in notes)

    data = hisearch(*arguments, "--json", "-q").json
    assert data["metrics"]["tpot_p99_s"] is None
    assert data["metrics"]["tpot_mean_s"] is None
    assert data["warnings"][-4:-1] == list(notes)
    assert "arrivals span" in data["warnings"][-1]
    _, tpot, rejected = data["slo"]["terms"]
    assert (tpot["value_s"], tpot["margin"], tpot["holds"]) == (None, None, True)
    assert (rejected["label"], rejected["requests"], rejected["arrived"]) == ("rejected_fraction", 1, 3)
    assert rejected["reasons"] == {"over_window": 1}
    assert data["slo"]["feasible"] is False

    hisearch(*arguments, "--requests", "r.csv", "-q")
    assert pd.read_csv("r.csv")["tpot_s"].isna().all()


def test_without_an_slo_nothing_is_said_of_goodput(hisearch: Hisearch, workdir: Path) -> None:
    data = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json").json
    assert data["slo"] is None
    assert "goodput_rps" not in data["metrics"]
    assert data["metrics"]["throughput_rps"] > 0
    assert package.simulate_deployment("pair.yaml", "visits.yaml").feasible is None


def test_a_horizon_leaves_requests_in_flight(hisearch: Hisearch, workdir: Path) -> None:
    data = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--json", "--horizon-s", 2).json
    assert data["horizon_reached"] is True
    assert data["requests"]["unreached"] > 0
    assert sum(data["requests"].values()) == 120


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("qwen3.5-397b-a17b", "states, for 6 running requests at most"),
        ("gpt-oss-120b", "tokens of layers with a window"),
    ],
)
def test_sglangs_second_pool_is_shown(hisearch: Hisearch, workdir: Path, model: str, says: str) -> None:
    """Linear attention's few states let fewer requests run than are asked for."""
    engine = "{name: sglang, mamba_full_memory_ratio: 0.01}"
    pool = f"{{accelerator: h200, tensor_parallel: 8, weight_dtype: fp8, engine: {engine}}}"
    (workdir / "second.yaml").write_text(
        "apiVersion: hisearch/v1\nkind: Deployment\nmetadata: {name: second}\n"
        f"spec: {{model: {model}, profile: roofline, pools: [{pool}]}}\n"
    )
    ran = hisearch("simulate", "second.yaml", "--trace", "visits.yaml", "--limit", 20)
    assert ran.code == 0, ran.err
    assert says in ran.out


def test_settings_and_limits(hisearch: Hisearch, workdir: Path) -> None:
    setting = "spec.pools.0.replicas=3"
    arguments = ("--trace", "visits.yaml", "--set", setting, "--limit", 50, "--json")
    data = hisearch("simulate", "pair.yaml", *arguments).json
    assert len(data["workers"]) == 3
    assert data["trace"]["requests"] == 50


@pytest.mark.parametrize("name", ["requests.parquet", "requests.csv", "requests.csv.gz"])
def test_a_row_per_request(hisearch: Hisearch, workdir: Path, name: str) -> None:
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", name, "-q").code == 0
    frame = pd.read_parquet(name) if name.endswith("parquet") else pd.read_csv(name)
    assert len(frame) == 120
    assert (frame["outcome"] == "finished").all()
    outside_s = frame["front_end_s"] + frame["first_delivery_s"]
    np.testing.assert_allclose(frame["ttft_s"], frame["first_token_s"] - frame["arrival_s"] + outside_s)
    assert (outside_s > 0).all()
    assert sorted(path.name for path in workdir.iterdir()) == ["pair.yaml", name, "small.yaml", "visits.yaml"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--set", "spec.model=deepseek-v3"), "GiB short on each rank"),
        (("--set", "spec.pools.0.tensor_parallel=3"), "tensor_parallel"),
        (("--set", "spec.pools.0.replicas=0"), "must be at least 1"),
        (("--set", "spec.model=lama"), "no Model named 'lama'"),
        (("--trace", "nowhere.jsonl"), "no file at nowhere.jsonl"),
        (("--trace", "vists"), "no Workload named 'vists'"),
        (("--format", "azure"), "which says its own"),
        (("--slo", "chat"), "no SLO named 'chat'"),
    ],
)
def test_what_cannot_be_simulated_is_an_error(
    hisearch: Hisearch, workdir: Path, arguments: tuple[str, ...], expected: str
) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert expected in ran.err


@pytest.mark.parametrize("option", ["--load", "--horizon-s"])
@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan"])
def test_a_number_that_is_out_of_range_is_a_matter_of_usage(
    hisearch: Hisearch, workdir: Path, option: str, value: str
) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", option, value)
    assert (ran.code, ran.out) == (2, "")
    assert "is not a number above 0" in ran.err
    assert option in ran.err


def test_a_table_of_unknown_form_is_a_usage_error(hisearch: Hisearch, workdir: Path) -> None:
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", "r.txt").code == 2


@pytest.mark.parametrize("option", [("--seed", 2**63), ("--seed", -1), ("--limit", 0)])
def test_a_number_out_of_range_is_a_usage_error(hisearch: Hisearch, workdir: Path, option: tuple[str, int]) -> None:
    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", *option).code == 2


def test_workers_over_time(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("simulate", "pair.yaml", "--trace", "visits.yaml", "-q")
    data = hisearch(*arguments, "--series", "s.parquet", "--json").json
    frame = pd.read_parquet("s.parquet")
    assert len(frame) == sum(worker["steps"] for worker in data["workers"])
    assert hisearch(*arguments, "--series", "s.csv.gz", "--series-interval-s", 0.5).code == 0
    regular = pd.read_csv("s.csv.gz")
    assert set(np.diff(regular["time_s"][regular["worker"] == 0])) == {0.5}
    assert regular["batch_tokens"].sum() == frame["batch_tokens"].sum()


def test_a_timeline(hisearch: Hisearch, workdir: Path) -> None:
    arguments = ("simulate", "pair.yaml", "--trace", "visits.yaml", "-q", "--timeline")
    assert hisearch(*arguments, "t.json").code == 0
    events = json.loads((workdir / "t.json").read_text())["traceEvents"]
    opened = [event for event in events if event["ph"] == "b" and event["name"] == "request"]
    assert hisearch(*arguments, "t.json", "--requests", "r.csv").code == 0
    ids = pd.read_csv("r.csv", dtype={"id": str})["id"].tolist()
    assert [event["args"]["request"] for event in opened] == ids
    assert hisearch(*arguments, "t.json.gz", "--timeline-from-s", 1, "--timeline-to-s", 1.5).code == 0
    windowed = json.loads(gzip.decompress((workdir / "t.json.gz").read_bytes()))["traceEvents"]
    assert 0 < len(windowed) < len(events)
    assert sorted(path.name for path in workdir.iterdir()) == [
        "pair.yaml", "r.csv", "small.yaml", "t.json", "t.json.gz", "visits.yaml",
    ]  # fmt: skip


def test_a_timeline_that_no_viewer_opens_is_refused(
    hisearch: Hisearch, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hisearch.report.figures.timeline.MAX_EVENTS", 10)
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "-q", "--timeline", "t.json")
    assert (ran.code, ran.out) == (1, "")
    assert "t.json: the timeline would hold" in ran.err
    assert "--timeline-from-s, --timeline-to-s" in ran.err
    assert not (workdir / "t.json").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--series", "s.txt"), ".parquet, .csv, .csv.gz"),
        (("--timeline", "t.html"), ".json, .json.gz"),
        (("--series-interval-s", 1), "means nothing without --series"),
        (("--timeline-from-s", 1), "means nothing without --timeline"),
        (("--timeline-to-s", 1), "means nothing without --timeline"),
        (("--series", "s.csv", "--series-interval-s", 0), "a positive number of seconds"),
        (("--timeline", "t.json", "--timeline-from-s", 2, "--timeline-to-s", 2), "from 2 s to 2 s is empty"),
    ],
)
def test_files_that_cannot_be_written_are_usage_errors(
    hisearch: Hisearch, workdir: Path, options: tuple[object, ...], expected: str
) -> None:
    ran = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", *options)
    assert (ran.code, ran.out) == (2, "")
    assert expected in " ".join(ran.err.replace("│", " ").split())


def test_overrides_are_for_documents(workdir: Path) -> None:
    resolved = load_deployment(workdir / "pair.yaml")
    with pytest.raises(ValueError, match="resolved already"):
        package.simulate_deployment(resolved, "visits.yaml", overrides=["spec.pools.0.replicas=1"])


def test_the_wait_for_the_first_token_that_clients_see(hisearch: Hisearch, workdir: Path) -> None:
    rows = (f"{i},{40 + i % 7 * 300},{25 + i % 11},{20 if i % 3 else 0},{i % 2}" for i in range(90))
    header = "arrival_s,input_tokens,output_tokens,thinking_tokens,priority\n"
    Path("thinks.csv").write_text(header + "\n".join(rows) + "\n")
    arguments = ("simulate", "pair.yaml", "--trace", "thinks.csv")
    slo = "ttfo p95 < 60s, ttfo p50 < 1us for priority 1"
    data = hisearch(*arguments, "--slo", slo, "--by", "priority", "--requests", "r.csv", "--json").json
    frame = pd.read_csv("r.csv")
    thinks = frame["thinking_tokens"] > 0
    assert (frame["ttfo_s"][thinks] > frame["ttft_s"][thinks]).all()
    assert (frame["ttfo_s"][~thinks] == frame["ttft_s"][~thinks]).all()
    assert (frame["ttfo_s"] < frame["e2e_s"]).all()
    assert data["metrics"]["ttfo_p95_s"] == pytest.approx(np.percentile(frame["ttfo_s"], 95))
    terms = {term["label"]: term for term in data["slo"]["terms"]}
    assert terms["ttfo_p95"]["holds"]
    assert not terms["ttfo_p50@priority=1"]["holds"]
    assert "TTFO" in hisearch(*arguments).out
    assert "thinking, of 66.7 % of requests" in hisearch("trace", "stats", "thinks.csv").out
    plain = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--requests", "p.csv", "--json")
    assert not any(name.startswith("ttfo") for name in plain.json["metrics"])
    assert "ttfo_s" not in pd.read_csv("p.csv")


def test_classes_of_requests_are_told_apart(hisearch: Hisearch, workdir: Path) -> None:
    rows = (f"{i},{40 + i % 7 * 300},{5 + i % 11},{i % 3}" for i in range(90))
    Path("mixed.csv").write_text("arrival_s,input_tokens,output_tokens,priority\n" + "\n".join(rows) + "\n")
    arguments = ("simulate", "pair.yaml", "--trace", "mixed.csv")
    slo = "ttft p95 < 5s for priority 0, ttft p50 < 1us for priority 2, tpot p95 < 1s"
    data = hisearch(*arguments, "--slo", slo, "--by", "priority", "--requests", "r.csv", "--json").json
    frame = pd.read_csv("r.csv")
    assert [share["number"] for share in data["classes"]] == [0, 1, 2]
    for share, (_, mine) in zip(data["classes"], frame.groupby("priority"), strict=True):
        assert share["arrived"] == len(mine) == 30
        assert share["latencies"]["ttft_p95_s"] == pytest.approx(np.percentile(mine["ttft_s"], 95))
    terms = {term["label"]: term for term in data["slo"]["terms"]}
    assert terms["ttft_p95@priority=0"]["holds"]
    assert not terms["ttft_p50@priority=2"]["holds"]
    assert [share["attainment"] for share in data["classes"]] == [1.0, 1.0, 0.0]
    shown = hisearch(*arguments, "--slo", slo, "--by", "priority").out
    assert "TTFT p50 of priority 2" in shown
    assert "By priority" in shown
    refused = hisearch(*arguments, "--slo", "ttft p95 < 5s for priority 7")
    assert refused.code == 1
    assert "no request of the workload has priority 7; it has 0, 1 and 2" in refused.err
