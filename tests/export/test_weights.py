"""An export that does not know where the weights are says so, and starts nothing under a made-up name."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.export.context import ExportContext
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.weights import weights_notice
from tests.export.conftest import export_all


@pytest.fixture
def written(build_deployment: Any, build_model: Any, build_accelerator: Any, tmp_path: Path) -> Any:
    def write(name: str, **pool: Any) -> Path:
        deployment, model = build_deployment(pool=pool), build_model(huggingface_id=name)
        launch = Launch(deployment.pool, model, build_accelerator(), 400_000)
        notices = tuple(text for text in (weights_notice([launch]),) if text)
        out = tmp_path / name.replace("/", "-")
        export_all(deployment, model, launch.accelerator, out, context=ExportContext(notices=notices))
        return out

    return write


def _start(script: Path, **environment: str) -> str:
    done = subprocess.run(
        ["bash", str(script), "replica", "0"], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def test_a_name_that_is_no_id_is_asked_for(written: Any) -> None:
    out = written("dsv32", weight_dtype="fp8")
    assert "**REPLACE THE MODEL'S NAME: dsv32 " in (out / "README.md").read_text(encoding="utf-8")
    assert "set MODEL to a checkpoint with bf16 weights" in _start(out / "sglang/run.sh")
    assert "set MODEL" not in _start(out / "sglang/run.sh", MODEL="acme/mine")
    assert "${MODEL:?" in (out / "compose/compose.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load((out / "llm-d/values.yaml").read_text(encoding="utf-8"))
    assert values["modelArtifacts"]["uri"] == "hf://ORGANISATION/MODEL"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-32B", "/models/mine"])
def test_an_id_or_a_folder_is_started_as_it_is(written: Any, name: str) -> None:
    out = written(name)
    assert "REPLACE" not in (out / "README.md").read_text(encoding="utf-8")
    assert "set MODEL" not in _start(out / "sglang/run.sh")


def test_what_the_engine_makes_of_the_weights_does_not_depend_on_their_name(
    build_deployment: Any, build_model: Any, build_accelerator: Any
) -> None:
    pool = build_deployment(pool={"weight_dtype": "fp8"}).pool
    launches = [Launch(pool, build_model(huggingface_id=n), build_accelerator(), 400_000) for n in ("a/b", "b")]
    assert [("--quantization", "fp8") in engine_flags(launch) for launch in launches] == [True, True]
