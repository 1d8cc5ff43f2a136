"""The residual figures of docs/accuracy-details.md: well-formed, with a point for every row in either panel."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

PATH = Path(__file__).parents[2] / "docs" / "silicon_figures.py"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("silicon_figures", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_row_is_a_point_in_both_panels(figures: ModuleType) -> None:
    rows = [
        {
            "backend": backend, "concurrency": concurrency, "measured_ttft_ms": "100", "predicted_ttft_ms": ttft,
            "measured_tpot_ms": "10", "predicted_tpot_ms": "10",
        }
        for backend, concurrency, ttft in (("vllm", "4", "200"), ("vllm", "64", "90000"), ("sglang", "4", "50"))
    ]  # fmt: skip
    text = figures.residual_figure(rows, "requests <in flight>", lambda row: float(row["concurrency"]))
    root = ElementTree.fromstring(text)
    dots = [path.get("d", "").count("h0") for path in root.iter() if path.get("stroke-linecap") == "round"]
    assert sum(dots) == 2 * len(rows)
    heights = {float(dot.split()[1].removesuffix("h0")) for path in root.iter() if path.get("stroke-linecap")
               for dot in path.get("d", "").split("M")[1:]}  # fmt: skip
    assert min(heights) == figures.TOP
    assert "requests &lt;in flight&gt;" in text
