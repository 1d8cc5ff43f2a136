"""What the tables of docs/hardware.md share: deployments written out, laws of steps, the page and its figures."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hisearch.api.deployments.deployment import SimulatedDeployment, simulate_deployment
from hisearch.api.measured.run_file import read_trace
from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.work import Load
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.latency.sharding import Parallelism
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.yaml_nodes import dump_yaml
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

PAGES = (
    Path(__file__).with_name("hardware.md"),
    Path(__file__).with_name("notes") / "2026-11-hardware-published.md",
)
IMAGES = Path(__file__).resolve().parent / "images"
CATALOGUE = Catalogue()
PIM_BLOCK: dict[str, Any] = {"attached": {"pim": {"device": "hbm2-pim"}}, "operators": {"decode_attention": "pim"}}
SCHEDULES = ("serial", "interleaved", "best")


def striped(device: str, channels: int) -> dict[str, Any]:
    """Decode attention in PIM, each head of a request on so many channels."""
    return {**PIM_BLOCK, "attached": {"pim": {"device": device, "stripe_channels": channels}}, "schedule": "best"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def simulated(
    spec: dict[str, Any], trace: Any, *, host: dict[str, Any] | None = None, **options: Any
) -> SimulatedDeployment:
    """A deployment that is written out here; its pools may name ``./host.yaml``, which is ``host``."""
    with tempfile.TemporaryDirectory() as folder:
        for kind, name, body in (("Deployment", "deployment", spec), ("Host", "host", host)):
            envelope = {"apiVersion": "hisearch/v1", "kind": kind, "metadata": {"name": name}, "spec": body}
            if body is not None:
                (Path(folder) / f"{name}.yaml").write_text(dump_yaml(envelope), encoding="utf-8")
        return simulate_deployment(Path(folder) / "deployment.yaml", trace, **options)


def law(model: str, accelerator: str, split: Parallelism, block: dict[str, Any]) -> DeviceWorker:
    """The law of a worker's steps."""
    spec = DevicesSpec.model_validate(block)
    devices = {name: CATALOGUE.get("Device", entry.device).spec for name, entry in spec.attached.items()}
    return compose(
        WorkerDevices(spec, devices), CATALOGUE.get("Model", model).spec,
        CATALOGUE.get("Accelerator", accelerator).spec, CATALOGUE.get("LatencyProfile", "roofline").spec, split, None,
        "bf16",
    )  # fmt: skip


def decode_s(worker: DeviceWorker, sequences: float, context: float) -> float:
    """Seconds of a step of decodes of ``context`` tokens each, LM head included."""
    n = np.array([float(sequences)])
    return float((worker.step(Load(n, 0 * n, 0 * n, n, n * context)) + worker.sequence(n))[0])


def artifact_path(name: str) -> Path:
    """Path of a trace of LLMServingSim 2.0's artifact, of the data beside the project (HISEARCH_SHARED).

    Raises:
        SystemExit: it is not there.
    """
    path = Path(os.environ.get("HISEARCH_SHARED", "")) / "validation" / "llmservingsim2" / "traces" / f"{name}.jsonl.gz"
    if not path.exists():
        raise SystemExit(f"{path}: the artifact's traces are needed; set HISEARCH_SHARED")
    return path


def artifact(name: str) -> CompiledTrace:
    """A trace of the artifact."""
    return read_trace(artifact_path(name), 16)


def batch(requests: int, prompt: int, answer: int) -> Any:
    """So many alike requests at once."""
    lengths = {"input_tokens": np.full(requests, prompt), "output_tokens": np.full(requests, answer)}
    return compile_trace(make_trace(arrival_s=np.zeros(requests), **lengths), "batch")


def write(name: str, text: str, *, only_check: bool = False) -> bool:
    """Put a table between its markers, on the page that has them; whether it stood there already."""
    begin, end = f"<!-- hardware: {name} -->\n", f"<!-- hardware: {name} end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    for path in PAGES:
        page = path.read_text(encoding="utf-8")
        if pattern.search(page):
            written = pattern.sub(lambda _: f"{begin}{text}\n{end}", page)
            if not only_check:
                path.write_text(written, encoding="utf-8")
            return written == page
    raise SystemExit(f"no page has markers for {name}")


def draw(figure: go.Figure, path: Path) -> None:
    """A picture of 1,000 by 430 points."""
    figure.update_layout(
        template="plotly_white", font={"family": "Arial", "size": 14}, width=1000, height=430,
        margin={"l": 70, "r": 20, "t": 60, "b": 60}, legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        figure.write_html(page, config={"displayModeBar": False})
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1010,445"]
        command = ["chromium", *options, "--virtual-time-budget=4000", f"--screenshot={path}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
