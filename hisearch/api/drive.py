"""A latency profile of a running server: ``hisearch.calibrate_server(...)``, all that ``calibrate server`` does.

From an observation's own steps, and from requests sent to the server: experiments that tell most of the law of its
steps and of its front end, until both are known well enough or the time is up.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hisearch.api.deployments.deployment import plan_pool, simulate_deployment
from hisearch.api.deployments.steps_off import chance_to_hold
from hisearch.api.observe import DEPLOYMENT, OBSERVATION, STEPS, observed_load
from hisearch.api.run_folder import write_text
from hisearch.base.shown import Shown
from hisearch.calibrate.profiles import Calibrated, LoggedWorker, calibrate_log
from hisearch.calibrate.served.experiments import (
    Bounds,
    LoggedStep,
    first_ones,
    front_end_of,
    log_of,
    next_experiments,
    steps_of,
)
from hisearch.calibrate.served.front_end import (
    ClientSample,
    FrontEndFit,
    FrontEndSample,
    fit_front_end,
    mean_decodes,
)
from hisearch.calibrate.step_fit import LEAST_STEPS, StepFit, fit_steps
from hisearch.calibrate.step_log import StepLog, read_step_logs
from hisearch.observe.client import Client, ServerError, headers_of
from hisearch.observe.driver import Driver, Outcome
from hisearch.observe.watch import find
from hisearch.specs.documents.catalogue import is_path
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.wording import counted, format_percent
from hisearch.traces.importers import read_measurements

#: Experiments between two fits.
ROUND = 8
#: Share of a benchmark's requests by which the server's own count of them may differ: some send one ahead.
OTHERS = 0.02
#: The profile, and what was measured, in the observation's folder.
PROFILE, DRIVEN, PROBES = "profile.yaml", "driven.jsonl", "front-end.jsonl"


class Chances(NamedTuple):
    """How likely the observed deployment holds an SLO on the observed load, by the errors that profiles state.

    before: by the profile that the deployment names. now: by the calibrated one.
    """

    before: float
    now: float

    @property
    def text(self) -> str:
        """In words."""
        return (
            f"with {format_percent(self.now)} on the observed load, by the errors of these steps; "
            f"{format_percent(self.before)} by those of the profile before"
        )


@dataclass(frozen=True, repr=False)
class CalibratedServer(Shown):
    """A profile, and what it rests on.

    steps: that it was fitted to. experiments: that were sent. front_end: None where nothing was sent. error: the
    largest median over kinds of steps, held out. reached: whether that is within what was asked for. chances: that an
    SLO holds on the observed load, where one was named.
    """

    calibrated: Calibrated
    steps: int
    experiments: int
    seconds: float
    front_end: FrontEndFit | None
    error: float
    reached: bool
    driven: tuple[LoggedStep, ...]
    samples: tuple[FrontEndSample, ...]
    chances: Chances | None = None

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        law = self.calibrated.profile.regressions[0]
        facts = {"profile": self.calibrated.name, "steps": f"{self.steps:,}"}
        for regime, error in law.errors.items():
            facts[f"{regime} steps"] = (
                f"held out: median {format_percent(error.median, 1)}, p90 {format_percent(error.p90, 1)} "
                f"({error.steps:,} steps)"
            )
        if law.excess.share or law.excess.prompt_share:
            facts["beyond the law"] = (
                f"{law.excess.share:+.1%} of each step, {law.excess.prompt_share:+.1%} more with prompts: pauses, "
                "predicted too"
            )
        if self.front_end is not None:
            times = self.front_end.times
            facts["front end"] = (
                f"{1e3 * times.request_s:.3g} ms a request ({1e3 * times.read_s:.3g} ms of it one after another), "
                f"{1e6 * times.prompt_token_s:.2g} us a prompt token, {1e6 * times.stream_s:.3g} us a token; "
                f"held out: median {1e3 * self.front_end.error_s:.2g} ms"
            )
            if self.front_end.client_s:
                facts["client"] = f"{1e3 * self.front_end.client_s:+.2g} ms of it a request: the benchmark's own"
            facts["sent"] = f"{counted(self.experiments, 'experiment')} in {self.seconds:.0f} s"
        if self.chances is not None:
            facts["the SLO holds"] = self.chances.text
        return facts

    def write(self, folder: Path, output: Path | None = None) -> list[Path]:
        """Write the profile (``profile.yaml``, or ``output``), and what was measured, into the observation's folder."""
        written = [output if output is not None else folder / PROFILE]
        write_text(written[0], self.calibrated.yaml)
        if self.samples:
            steps = [
                {
                    "latency_s": step.latency_s,
                    "requests": [
                        {"new_tokens": new, "cached_tokens": cached, "kind": "decode" if decode else "prefill"}
                        for new, cached, decode in step.shares
                    ],
                }
                for step in self.driven
            ]
            for name, rows in ((DRIVEN, steps), (PROBES, [sample._asdict() for sample in self.samples])):
                write_text(folder / name, "".join(json.dumps(row) + "\n" for row in rows))
                written.append(folder / name)
        return written


def calibrate_server(
    observed: str | Path,
    *,
    drive: str | None = None,
    seconds: float = 90.0,
    error: float = 0.05,
    token: str | None = None,
    headers: Sequence[str] = (),
    ca: Path | None = None,
    source: str = "own measurements",
    name: str | None = None,
    seed: int = 0,
    clients: Sequence[ClientSample] = (),
    benchmark: Path | None = None,
    slo: str | None = None,
    report: Callable[[float, str], None] = lambda passed_s, said: None,
) -> CalibratedServer:
    """Fit a profile to an observation, and to requests that are sent.

    Args:
        observed: folder of ``hisearch observe``, with ``deployment.yaml`` and perhaps ``steps.jsonl``.
        drive: address of the server to send requests to; none are sent where None.
        seconds: that may be spent on them.
        error: largest median error of steps, held out, that is good enough.
        token: sent as ``Authorization: Bearer``.
        headers: further ones, ``NAME: VALUE``.
        ca: file of certificates that are trusted.
        source: what the profile names as its source.
        name: of the profile.
        seed: of the prompts.
        clients: benchmarks that ran on the server, whose client is to be predicted; only with ``drive``.
        benchmark: results of one that ran just while the server was observed, steps included: a client too.
        slo: a phrase, a name or a path: how likely the observed deployment holds it on the observed load is stated, by
            the profile before and by this one.
        report: is told the seconds passed, and what is known by then.

    Raises:
        ServerError: the server cannot be driven.
        ValueError: there are neither steps nor a server, too few steps, or clients without a server.
        OSError, SpecError: the folder holds no observation of one pool.
    """
    folder = Path(observed)
    resolved = load_deployment(folder / DEPLOYMENT)
    worker = _worker(resolved)
    log = read_step_logs([folder / STEPS]) if (folder / STEPS).is_file() else None
    if log is None and drive is None:
        raise ValueError(
            f"{folder}: no {STEPS}: observe with --logs, or name a server to send requests to with --drive"
        )
    if benchmark is not None:
        clients = [*clients, client_of(folder, benchmark, log)]
    if clients and drive is None:
        raise ValueError("a benchmark's client is held against the one that sends requests: name a server with drive")
    began = time.monotonic()
    outcomes: list[Outcome] = []
    driven: list[LoggedStep] = []
    if drive is not None:
        client = Client(drive, headers_of(token, tuple(headers)), ca)
        driver, bounds = _driver(client, resolved, seed)
        driven = _drive(driver, bounds, log, outcomes, seconds, error, report)
    samples = [front_end_of(outcome) for outcome in outcomes]
    front_end = fit_front_end(samples) if drive is not None else None
    if front_end is not None and clients:
        front_end = front_end.of_client(clients)
    # The engine's own log is exact, and holds the experiments too where it was written meanwhile.
    fitted = log if log is not None else log_of(driven)
    measured = str(folder / STEPS) if log is not None else str(drive)
    calibrated = calibrate_log(
        fitted, worker, measured=measured, source=source, name=name, front_end=front_end, with_excess=log is not None
    )
    worst, passed_s = calibrated.profile.relative_error, time.monotonic() - began
    return CalibratedServer(
        calibrated, len(fitted.latency_s), len(outcomes), passed_s, front_end, worst, worst <= error,
        tuple(driven), tuple(samples), None if slo is None else _chances(folder, calibrated, slo, seed),
    )  # fmt: skip


def _chances(folder: Path, calibrated: Calibrated, slo: str, seed: int) -> Chances:
    """Of the observed deployment on the observed load.

    Raises:
        FileNotFoundError: the folder has no load.
    """
    load = observed_load(folder)

    def chance(*settings: str) -> float:
        resolved = load_deployment(folder / DEPLOYMENT, settings)
        return chance_to_hold(simulate_deployment(resolved, load, slo=slo), seed)

    with tempfile.TemporaryDirectory() as place:
        profile = Path(place) / PROFILE
        profile.write_text(calibrated.yaml, encoding="utf-8")
        return Chances(chance(), chance(f"spec.profile={profile}"))


def client_of(folder: Path, benchmark: Path, log: StepLog | None) -> ClientSample:
    """What a benchmark waited for its first tokens, and what the server says of the same requests.

    Args:
        folder: of an observation that began and ended with the benchmark.
        benchmark: its results.
        log: steps of the observation.

    Raises:
        ValueError: there is no log, a mean TTFT is missing, or the two are not of as many requests.
        TraceError: a file cannot be read.
    """
    if log is None:
        raise ValueError(
            f"{folder}: no {STEPS}: they tell how many others wrote as {benchmark}'s prompts were computed"
        )
    means: list[tuple[int, float]] = []
    for path in (benchmark, folder / OBSERVATION):
        runs = read_measurements(path)
        if len(runs) != 1 or "ttft_mean_s" not in runs[0].figures:
            raise ValueError(f"{path}: expected one run, with its mean TTFT")
        means.append((runs[0].sent - runs[0].failed, runs[0].figures["ttft_mean_s"]))
    (sent, client_s), (served, server_s) = means
    if abs(sent - served) > OTHERS * sent:
        raise ValueError(
            f"{folder}: the server ended {counted(served, 'request')} while it was observed, {benchmark} has "
            f"{sent:,}: observe from before the benchmark until after it, and let nobody else send any"
        )
    return ClientSample(sent, client_s, server_s, mean_decodes(log))


def _worker(resolved: ResolvedDeployment) -> LoggedWorker:
    """The worker of the only pool.

    Raises:
        SpecError: there are several pools.
    """
    if len(resolved.deployment.pools) > 1:
        raise resolved.document.error("spec.pools", "steps are those of one pool; observe its servers alone")
    pool = resolved.deployment.pool
    model, accelerator = resolved.model, resolved.accelerators[pool.accelerator]
    return LoggedWorker(
        str(model.path) if is_path(resolved.deployment.model) else resolved.deployment.model,
        str(accelerator.path) if is_path(pool.accelerator) else pool.accelerator,
        pool.engine.name, pool.engine.version, pool.tensor_parallel,
        pool.weight_dtype, pool.kv_dtype,
    )  # fmt: skip


def _driver(client: Client, resolved: ResolvedDeployment, seed: int) -> tuple[Driver, Bounds]:
    """The driver of a server that runs what the deployment says, and what may be sent to it."""
    pool, model = resolved.deployment.pool, resolved.model.spec
    facts = find(1, client, {}).facts
    if facts.engine != "vllm":
        raise ServerError(
            f"{client.url}: {facts.engine} does not tell its engine's seconds of a request, so that its front end "
            "could not be told apart; servers of vLLM can be driven"
        )
    models = (client.get("/v1/models").json() or {}).get("data") or [{}]
    driver = Driver(client, str(models[0].get("id", facts.model)), model.vocab_size, seed)
    context = facts.max_context_tokens or model.max_context_tokens
    kv_tokens = facts.kv_tokens or plan_pool(resolved, 0).kv_capacity_tokens
    return driver, Bounds(pool.engine.chunk_tokens, pool.engine.max_running_requests, context, kv_tokens)


def _drive(
    driver: Driver,
    bounds: Bounds,
    log: StepLog | None,
    outcomes: list[Outcome],
    seconds: float,
    error: float,
    report: Callable[[float, str], None],
) -> list[LoggedStep]:
    """Send experiments until steps are known within ``error``, or the time is up."""
    steps: list[LoggedStep] = []
    began = time.monotonic()
    # The first request of its kind finds cold code.
    queue = first_ones(bounds)
    driver.run(queue[0])
    while True:
        for experiment in queue:
            outcome = driver.run(experiment)
            outcomes.append(outcome)
            steps += steps_of(outcome, bounds.chunk_tokens)
            passed_s = time.monotonic() - began
            report(min(passed_s, seconds), f"{counted(len(outcomes), 'experiment')}, {counted(len(steps), 'step')}")
            if passed_s > seconds:
                return steps
        fit = _fit(steps)
        if fit is None:
            queue = first_ones(bounds)
            continue
        # Where the engine logs its steps, experiments are for the front end alone.
        if log is not None or max(each.median for each in fit.errors.values()) <= error:
            return steps
        queue = next_experiments(fit.law, steps, bounds, ROUND)


def _fit(steps: Sequence[LoggedStep]) -> StepFit | None:
    """The law of what is known so far; None of too few steps."""
    return fit_steps(log_of(steps)) if len(steps) >= LEAST_STEPS else None
