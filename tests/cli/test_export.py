"""``hisearch export`` of a deployment's document: flags of all it states, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Hisearch

LORA = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: adapters}
spec:
  model: llama-3.1-8b
  pools:
  - accelerator: h100-sxm
    engine: {name: sglang}
    lora: {max_loras: 4, rank: 16, overlap_loading: true}
"""


def test_a_document_is_exported_with_its_adapters(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "lora.yaml").write_text(LORA)
    done = hisearch("export", "lora.yaml")
    assert done.code == 0
    assert done.out.splitlines()[0] == "lora/README.md"
    script = (workdir / "lora/sglang/run.sh").read_text()
    for flag in ("--enable-lora", "--max-loras-per-batch 4", "--max-loaded-loras 8", "--enable-lora-overlap-loading"):
        assert flag in script
    readme = (workdir / "lora/README.md").read_text()
    assert readme.startswith("# Deployment adapters, as its document has it")
    assert "Nothing was predicted for a workload" in readme
    again = hisearch("simulate", "lora/deployment.yaml", "--trace", "chat-multiturn", "--limit", "20", "--json")
    assert again.json["requests"]["finished"] == 20


def test_settings_and_the_catalogue(hisearch: Hisearch, workdir: Path) -> None:
    done = hisearch("export", "qwen3-32b-h100-tp2", "--out", "d", "--set", "spec.pools.0.tiers=[]", "--json")
    assert done.json["folder"] == "d"
    assert "--enable-hierarchical-cache" not in (workdir / "d/sglang/run.sh").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing-there",), "no Deployment named 'nothing-there'"),
        (("lora.yaml", "--engine", "vllm"), "lora.yaml is no folder"),
        (("lora.yaml", "--set", "spec.pools.0.lora.dtype=int4"), "bf16"),
        (("run", "--set", "spec.model=x"), "a run's is exported as the run has it"),
    ],
)
def test_what_cannot_be_exported(arguments: tuple[str, ...], message: str, hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "lora.yaml").write_text(LORA)
    (workdir / "run").mkdir()
    before = sorted(workdir.iterdir())
    done = hisearch("export", *arguments)
    assert done.code != 0
    assert message in " ".join(done.err.split())
    assert sorted(workdir.iterdir()) == before
