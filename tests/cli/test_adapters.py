"""LoRA adapters on the command line: memory, and what workers did with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.documents.catalogue import Catalogue
from tests.cli.conftest import Hisearch

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: adapted}
spec:
  model: qwen2.5-7b
  profile: roofline
  router: {policy: round_robin}
  pools:
  - accelerator: h100-sxm
    engine: {name: sglang}
    replicas: 2
    lora: {max_loras: 2, rank: 64}
"""


@pytest.fixture
def adapted(workdir: Path) -> Path:
    """A deployment of two workers, and 60 requests for six adapters in turn."""
    (workdir / "adapted.yaml").write_text(DEPLOYMENT)
    rows = "".join(f"{0.02 * k},200,20,lora-{k % 6}\n" for k in range(60))
    (workdir / "t.csv").write_text(f"at,in,out,lora\n{rows}")
    return workdir


COLUMNS = "arrival_s=at,input_tokens=in,output_tokens=out,adapter=lora"
SIMULATE = ("simulate", "adapted.yaml", "--trace", "t.csv", "--columns", COLUMNS)


def test_slots_leave_kv_memory_in_every_figure(hisearch: Hisearch, adapted: Path) -> None:
    data = hisearch(*SIMULATE, "-q", "--json").json
    fits = {slots: hisearch("doctor", "adapted.yaml", "--set", f"spec.pools.0.lora.max_loras={slots}", "--json").json
            for slots in (2, 30)}  # fmt: skip
    (two,), (thirty,) = (fits[slots]["fits"] for slots in (2, 30))
    tokens = {data["memory"]["kv_capacity_tokens"], *(row["kv_capacity_tokens"] for row in data["pools"])}
    tokens |= {row["memory"]["kv_capacity_tokens"] for row in data["pools"]} | {two["kv_capacity_tokens"]}
    assert len(tokens) == 1
    slot_tokens = data["adapters"][0]["slot_bytes"] / 2 / data["memory"]["kv_bytes_per_token_per_rank"]
    assert two["kv_capacity_tokens"] - thirty["kv_capacity_tokens"] == pytest.approx(28 * slot_tokens, abs=2)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("lora.max_loras=900", "and no KV is left; lower max_loras or rank"),
        ("engine.name=vllm", "vLLM reads adapters from the disks of its host"),
    ],
)
def test_doctor_says_what_a_simulation_refuses(hisearch: Hisearch, adapted: Path, setting: str, problem: str) -> None:
    host = Path(Catalogue().locate("Host", "hgx-h100-8")).read_text()
    (adapted / "diskless.yaml").write_text("".join(line for line in host.splitlines(True) if "  nvme" not in line))
    settings = [word for key in (setting, "host=diskless.yaml") for word in ("--set", f"spec.pools.0.{key}")]
    for ran in (hisearch("doctor", "adapted.yaml", *settings), hisearch(*SIMULATE, *settings)):
        assert ran.code != 0
        assert problem in " ".join((ran.out + ran.err).split())


def test_each_worker_s_row_counts_its_own_requests(hisearch: Hisearch, adapted: Path) -> None:
    """Round robin deals adapters 0, 2, 4 to one worker and 1, 3, 5 to the other."""
    rows = hisearch(*SIMULATE, "-q", "--json").json["adapters"]
    assert [(row["requests"], row["adapters"], row["host_adapters"]) for row in rows] == [(30, 3, 6), (30, 3, 6)]
    said = " ".join(hisearch(*SIMULATE).out.split())
    assert "60 requests for 6 adapters in 2 slots" in said
    assert "of them on average; their kernels take" in said
    assert "a request waited as its adapter had no place, counted in each pass of the scheduler" in said
