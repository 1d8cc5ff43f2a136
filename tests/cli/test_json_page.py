"""docs/json.md names every key that ``--json`` prints, and no other: held against real outputs, both ways."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.conftest import Hisearch
from tests.docs.pages import ROOT

#: By a page's heading: what stands below it.
PARTS = {
    name.strip("`"): text
    for names, text in re.findall(
        r"^## ([^\n]+)\n(.*?)(?=^## |\Z)",
        (ROOT / "docs" / "json.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    for name in names.split(", ")
}
ALIKE = re.compile(r"`([a-z_0-9.]+)`")


def named(text: str) -> set[str]:
    """All that stands in backticks and may be a key."""
    return {key.rpartition(".")[2] for key in ALIKE.findall(text)}


def first_column(text: str) -> set[str]:
    """Top-level keys of a part's table."""
    cells = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `"))
    return {key for cell in cells for key in ALIKE.findall(re.sub(r"\(.*\)", "", cell)) if "." not in key}


def keys_of(value: Any, depth: int = 2) -> set[str]:
    """Keys of an object and of the objects right below it; those that are data, such as names of terms, left out."""
    if isinstance(value, list):
        return set().union(*(keys_of(item, depth) for item in value)) if value else set()
    if not isinstance(value, dict) or depth == 0:
        return set()
    below = (keys_of(item, depth - 1) for name, item in value.items() if name not in DATA)
    return set(value).union(*below)


#: Keys whose objects have keys that are data (names of metrics, of terms, a document), or are told elsewhere.
DATA = frozenset({
    "metrics", "deployment", "spec", "terms", "intervals", "medians", "simulations", "relieved_s", "question", "missed",
    "confidence", "settings", "values", "slo",
})  # fmt: skip
SMALL = (
    "--set", "spec.budget.simulations=8", "--set", "spec.confidence.draws=4", "--set", "spec.confidence.what_if=2",
    "-q", "--json",
)  # fmt: skip


def test_runs(hisearch: Hisearch, workdir: Path) -> None:
    data = hisearch("run", "small.yaml", *SMALL, "--out", "r").json
    assert keys_of(data) - named(PARTS["run"]) == set()
    assert first_column(PARTS["run"]) == set(data)
    conclusion = PARTS["confidence.json"]
    assert keys_of(data["confidence"], 1) - named(conclusion) == set()
    assert first_column(conclusion) - set(data["confidence"]) <= {"bandwidths"}  # of attached devices alone
    assert keys_of(hisearch("report", "r", "--json").json) - named(PARTS["report"]) == set()
    assert keys_of(hisearch("export", "r", "--out", "e", "--json").json) - named(PARTS["export"] + trial()) == set()
    compared = hisearch("compare", "r", "r", "--json").json
    assert keys_of(compared) - named(PARTS["compare"] + trial()) == set()
    assert first_column(PARTS["compare"]) == set(compared)


def test_sizes(hisearch: Hisearch, workdir: Path) -> None:
    asked = ("--model", "llama-3.1-8b", "--slo", "ttft p95 < 1s", "--input", "500 exactly", "--output", "50 exactly")
    short = ("--set", "spec.workload.trace.generator.requests=300")
    own, largest = PARTS["size"].split("With `--have`")
    data = hisearch("size", *asked, "--rate", 2, "--gpu", "h100-sxm", *short, *SMALL, "--out", "s").json
    assert keys_of(data) - named(PARTS["run"] + own) == set()
    assert first_column(own) | first_column(PARTS["run"]) == set(data)
    space = (
        "execution.chunk_tokens=[2048]", "execution.max_running_requests=[64]", "execution.pipeline_parallel=[1]",
        "routing.policies=[power_of_two]", "cache.memory_fraction=[0.9,0.9]",
    )  # fmt: skip
    settings = [word for key in space for word in ("--set", f"spec.space.{key}")]
    settings += ["--set", "spec.confidence.draws=4"]
    data = hisearch("size", *asked, "--have", "h100-sxm:1", *short, *settings, "-q", "--json", "--out", "l").json
    assert keys_of(data) - named(PARTS["run"] + largest) == set()
    (kind,) = data["kinds"]
    assert first_column(largest) | {"study", "run_dir", "feasible"} == set(kind)


def test_simulations_and_traces(hisearch: Hisearch, workdir: Path) -> None:
    data = hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "--slo", "interactive-chat",
                    "--by", "tenant", "-q", "--json").json  # fmt: skip
    assert keys_of(data) - named(PARTS["simulate"] + trial()) <= SUMS
    assert first_column(PARTS["simulate"]) - set(data) <= {"tier_values"}
    statistics = hisearch("trace", "stats", "visits.yaml", "--json").json
    assert keys_of(statistics) - named(PARTS["trace"]) == set()
    made = hisearch("trace", "generate", "visits.yaml", "-o", "t.jsonl", "--json").json
    assert keys_of(made) - named(PARTS["trace"]) == set()
    cached = hisearch("validate", "cache", "visits.yaml", "--capacity-tokens", 1000, "-q", "--json").json
    assert keys_of(cached) - named(PARTS["validate"]) == set()


def test_documents(hisearch: Hisearch, workdir: Path) -> None:
    for document in ("pair.yaml", "small.yaml"):
        assert keys_of(hisearch("doctor", document, "--json").json) - named(PARTS["doctor"]) == set()
    assert keys_of(hisearch("list", "SLO", "--json").json["SLO"]) - named(PARTS["list"]) == set()


def trial() -> str:
    """Where a trial's keys are told."""
    return PARTS["run"]


#: Parts of sums that the page tells by their sum: dollars and joules by component.
SUMS = frozenset({
    "accelerator_usd_per_hour", "device_usd_per_hour", "host_usd_per_hour", "ffn_usd_per_hour", "ffn_host_usd_per_hour",
})  # fmt: skip
