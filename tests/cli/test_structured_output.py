"""Structured output on the command line: what workers did, and what is said where nobody serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Hisearch
from tests.cli.test_adapters import DEPLOYMENT

COLUMNS = "arrival_s=at,input_tokens=in,output_tokens=out,grammar=schema"
SIMULATE = ("simulate", "deployment.yaml", "--trace", "t.csv", "--columns", COLUMNS)
SERVED = "{compile_s: 0.2, cpu_cores: 8}"


@pytest.fixture
def workload(workdir: Path) -> Path:
    """Two workers, and 60 requests: of three, the first is free text, the others have a grammar each."""
    (workdir / "deployment.yaml").write_text(
        DEPLOYMENT.replace("    lora: {max_loras: 2, rank: 64}\n", f"    structured_output: {SERVED}\n")
    )
    rows = "".join(f"{0.5 * k},200,20,{('', 'a', 'b')[k % 3]}\n" for k in range(60))
    (workdir / "t.csv").write_text(f"at,in,out,schema\n{rows}")
    return workdir


def test_workers_say_what_grammars_took(hisearch: Hisearch, workload: Path) -> None:
    rows = hisearch(*SIMULATE, "-q", "--json").json["grammars"]
    assert [(row["requests"], row["grammars"], row["compilations"], row["waited"]) for row in rows] == [
        (20, 2, 2, 2)
    ] * 2
    # SGLang looks every half millisecond.
    assert [row["wait_s"] for row in rows] == pytest.approx([0.4, 0.4], abs=0.002)
    said = " ".join(hisearch(*SIMULATE).out.split())
    assert "40 requests with a grammar; 4 compilations, 200 ms each; 4 requests waited for theirs" in said


def test_a_deployment_without_the_section_says_so(hisearch: Hisearch, workload: Path) -> None:
    ran = hisearch(*SIMULATE, "--set", "spec.pools.0.structured_output=null")
    assert "outputs of 40 requests follow a grammar, and the deployment takes them for free text" in ran.err
    assert hisearch(*SIMULATE, "--set", "spec.pools.0.structured_output=null", "-q", "--json").json["grammars"] == []


def test_what_is_not_simulated_is_refused_by_its_key(hisearch: Hisearch, workload: Path) -> None:
    ran = hisearch(*SIMULATE, "--set", "spec.pools.0.engine.name=trtllm")
    assert ran.code != 0
    assert "structured_output: grammars are simulated for the engines sglang and vllm, not trtllm" in ran.err
