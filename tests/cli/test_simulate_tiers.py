"""``hisearch simulate`` on deployments with cache tiers: what it prints, warns of, refuses and writes."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from hisearch.specs.documents.catalogue import shipped_root
from tests.cli.conftest import Hisearch
from tests.cli.documents import DEPLOYMENT

TIERED = """\
      tiers:
        - {medium: ddr5, gib: %s}
        - {medium: rdma-pool, gib: 16}
"""


def write(folder: Path, engine: str, movement: str, gib: str = "1") -> None:
    """``tiered.yaml``: the pair of workers with host memory and a pool."""
    text = DEPLOYMENT.replace("name: vllm", f"name: {engine}").replace("  router:", f"{TIERED % gib}  router:")
    text = text.replace("  router:", f"      movement: {movement}\n  router:")
    (folder / "tiered.yaml").write_text(text)


def test_stores_over_time_are_rows_of_their_own(hisearch: Hisearch, workdir: Path) -> None:
    write(workdir, "vllm", "{kv_connector: lmcache}")
    arguments = ("simulate", "tiered.yaml", "--trace", "visits.yaml", "-q", "--tier-series")
    data = hisearch(*arguments, "t.parquet", "--series", "s.csv", "--json").json
    frame = pd.read_parquet("t.parquet")
    stores = frame[["tier", "medium", "scope", "store", "first_worker", "workers"]].drop_duplicates()
    assert stores.to_numpy().tolist() == [
        [1, "ddr5", "worker", 0, 0, 1],
        [1, "ddr5", "worker", 1, 1, 1],
        [2, "rdma-pool", "cluster", 0, 0, 2],
    ]
    steps = sum(worker["steps"] for worker in data["workers"])
    assert len(frame) == 2 * steps
    pool = frame[frame["tier"] == 2]
    assert pool["time_s"].is_monotonic_increasing
    assert 0 < pool["held_tokens"].max() <= data["tiers"][2]["peak_tokens"]
    assert not {"host_tokens", "storage_tokens"} & set(pd.read_csv("s.csv").columns)

    assert hisearch(*arguments, "t.csv", "--series-interval-s", 0.5).code == 0
    regular = pd.read_csv("t.csv")
    assert len(set(regular.groupby(["tier", "store"]).size())) == 1
    assert regular["held_tokens"].max() == frame["held_tokens"].max()

    assert hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "-q", "--tier-series", "n.csv").code == 0
    assert list(pd.read_csv("n.csv").columns) == list(regular.columns)
    assert len(pd.read_csv("n.csv")) == 0


def test_the_table_of_tiers_has_the_columns_that_mean_something(hisearch: Hisearch, workdir: Path) -> None:
    write(workdir, "vllm", "{kv_connector: lmcache}")
    out = hisearch("simulate", "tiered.yaml", "--trace", "visits.yaml", "-q", "--tier-values").out
    assert "loaded back" in out
    assert "Peak of hbm: what requests held at once" in out
    assert "A tenth more of each tier" in out
    assert not any(word in out for word in ("expired", "moved on", "in vain"))
    assert "loaded back" not in hisearch("simulate", "pair.yaml", "--trace", "visits.yaml", "-q").out


def test_doctor_and_simulate_warn_alike(hisearch: Hisearch, workdir: Path) -> None:
    write(workdir, "vllm", "{kv_connector: lmcache}", gib="300")
    warning = (
        "tiered.yaml:11: spec.pools.0.tiers.0.gib: 8 workers of tensor_parallel 1 with 300 GiB each need 2400 GiB of "
        "host memory; hgx-h100-8 has 2048 GiB"
    )
    data = hisearch("simulate", "tiered.yaml", "--trace", "visits.yaml", "--json")
    assert warning in data.json["warnings"]
    assert f"warning: {warning}" in data.err
    assert warning in hisearch("doctor", "tiered.yaml", "--json").json["warnings"]


@pytest.mark.parametrize(
    ("engine", "movement", "gib", "expected"),
    [
        ("sglang", "{}", "1", "tiered.yaml:11: spec.pools.0.tiers.0.gib: 1 GiB hold 7629 tokens; SGLang's host pool"),
        (
            "vllm",
            "{kv_connector: lmcache}",
            "0.01",
            "tiered.yaml:11: spec.pools.0.tiers.0.gib: 0.01 GiB are less than one chunk",
        ),
        (
            "sglang",
            "{kv_connector: lmcache}",
            "99",
            "tiered.yaml:13: spec.pools.0.movement.kv_connector: LMCache under SGLang can be",
        ),
        ("sglang", "{write_policy: behind}", "99", "tiered.yaml:13: spec.pools.0.movement.write_policy: "),
    ],
)
def test_refusals_name_file_line_and_key(
    hisearch: Hisearch, workdir: Path, engine: str, movement: str, gib: str, expected: str
) -> None:
    write(workdir, engine, movement, gib)
    ran = hisearch("simulate", "tiered.yaml", "--trace", "visits.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert f"hisearch: error: {expected}" in ran.err
    judged = hisearch("doctor", "tiered.yaml", "--json")
    assert judged.code == 1
    assert any(problem.startswith(expected) for problem in judged.json["problems"])


@pytest.mark.parametrize(
    ("engine", "nearest", "behind", "expected"),
    [
        ("vllm", "gib: 0.0001", "", "tiered.yaml:11: spec.pools.0.tiers.0.gib: 0.0001 GiB are less than one chunk"),
        (
            "sglang",
            "gib: 99",
            "gib: 1e-5",
            "tiered.yaml:12: spec.pools.0.tiers.1.gib: 1e-05 GiB are less than one page",
        ),
        (
            "sglang",
            "gib: 1",
            "gib: 9",
            "tiered.yaml:11: spec.pools.0.tiers.0.gib: 1 GiB hold 7629 tokens; SGLang's host",
        ),
        (
            "sglang",
            "gib: 99, scope: node",
            "gib: 9",
            "tiered.yaml:11: spec.pools.0.tiers.0.scope: node: HiCache's nearest tier is each worker's own: every rank "
            "allocates its host pool itself. Set scope: worker, and let what is shared be the next entry of tiers",
        ),
        (
            "sglang",
            "gib: 99",
            "gib: 9, scope: node",
            "tiered.yaml:12: spec.pools.0.tiers.1.scope: node: slow.yaml is outside every node; its scope is cluster",
        ),
        ("sglang", "gib: 99", "gib: 9, scope: rack", "tiered.yaml:12: spec.pools.0.tiers.1.scope: expected 'worker'"),
        ("sglang", "gib: 99", "gib: 9, ttl_s: 0", "tiered.yaml:12: spec.pools.0.tiers.1.ttl_s: must be greater than 0"),
        (
            "sglang",
            "gib: 99",
            "gib: 9, ttl_s: -5",
            "tiered.yaml:12: spec.pools.0.tiers.1.ttl_s: must be greater than 0",
        ),
        ("sglang", "gib: 99", "gib: 9", "slow.yaml:8: spec.read_bytes_per_s: must be greater than 0, got 0"),
    ],
)
def test_tiers_that_cannot_be_are_refused_by_file_line_and_key(
    hisearch: Hisearch, workdir: Path, engine: str, nearest: str, behind: str, expected: str
) -> None:
    """A tier smaller than a page, a host pool no larger than HBM, a scope that no node has, no bandwidth, no time."""
    write(workdir, engine, "{kv_connector: lmcache}" if engine == "vllm" else "{}")
    text = (workdir / "tiered.yaml").read_text()
    text = text.replace("{medium: ddr5, gib: 1}", f"{{medium: ddr5, {nearest}}}")
    text = text.replace("{medium: rdma-pool, gib: 16}", f"{{medium: slow.yaml, {behind or 'gib: 16'}}}")
    (workdir / "tiered.yaml").write_text(text)
    medium = (shipped_root() / "profiles/media/rdma-pool.yaml").read_text().replace("name: rdma-pool", "name: slow")
    if "read_bytes_per_s" in expected:
        medium = re.sub("read_bytes_per_s: .*", "read_bytes_per_s: 0", medium)
    (workdir / "slow.yaml").write_text(medium)
    for verb in (("simulate", "tiered.yaml", "--trace", "visits.yaml"), ("doctor", "tiered.yaml")):
        ran = hisearch(*verb)
        assert ran.code == 1
        assert expected in " ".join((ran.err + ran.out).split())
