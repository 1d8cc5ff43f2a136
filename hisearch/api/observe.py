"""Running servers: ``hisearch.observe_servers(...)``, all that ``hisearch observe`` does.

Example::

    seen = hisearch.observe_servers(["http://10.0.0.7:8000"], seconds=300, accelerator="h100-sxm")
    print(seen)
    seen.write("observed")

Servers are asked by GET alone. What is kept are settings and numbers: no prompts, outputs, users, addresses or tokens.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.base.shown import Shown
from hisearch.export.context import document_text
from hisearch.observe.client import Client, ServerError, headers_of
from hisearch.observe.deployment import accelerator_of, deployment_of, model_of, unreported
from hisearch.observe.load import generator_of, losses
from hisearch.observe.prometheus import Histogram
from hisearch.observe.reading import Facts, parse_arguments
from hisearch.observe.watch import Watched, Window, find, watch, window_of
from hisearch.observe.words import how_it_fares, what_is_odd
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.wording import counted

#: Files that an observation writes.
DEPLOYMENT, WORKLOAD, TRACE, STEPS, OBSERVATION = (
    "deployment.yaml", "workload.yaml", "trace.jsonl", "steps.jsonl", "observation.json",
)  # fmt: skip
#: Steps of engines that tell sums over the batch alone, which no calibration reads.
STEP_SUMS = "steps.csv"
#: Quantiles that stand beside each mean.
_QUANTILES = (50, 90, 95, 99)


@dataclass(frozen=True, repr=False)
class Observation(Shown):
    """What servers did in a window of time.

    servers: what each says of itself. window: all of them together. deployment, generator: sections ``spec`` and
    ``generator`` of documents, None where they are not known. trace, steps: logs from inside the servers. fares, odd,
    notes: sentences. complete: False where it was interrupted.
    """

    servers: tuple[Facts, ...]
    window: Window
    deployment: dict[str, Any] | None
    generator: dict[str, Any] | None
    trace: Path | None
    steps: tuple[Path, ...]
    fares: tuple[str, ...]
    odd: tuple[str, ...]
    notes: tuple[str, ...]
    complete: bool

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        first = self.servers[0]
        title = f"{ENGINE_TITLES[first.engine]} {first.version}".strip()
        facts = {"servers": f"{len(self.servers)} of {title}", "model": first.model}
        return facts | {f"finding {place}": text for place, text in enumerate((*self.fares, *self.odd), start=1)}

    @property
    def figures(self) -> dict[str, float]:
        """Means and quantiles in seconds, and rates, under the names of ``score.metrics``. Quantiles are a bucket's."""
        figures: dict[str, float] = {}
        for stem in ("ttft", "tpot", "e2e"):
            histogram = self.window.histograms.get(f"{stem}_s")
            if histogram is not None and histogram.count:
                figures[f"{stem}_mean_s"] = histogram.mean
                figures |= {f"{stem}_p{percent}_s": histogram.quantile(percent / 100) for percent in _QUANTILES}
        for name, counter in (("throughput_rps", "requests"), ("output_tokens_per_s", "output_tokens")):
            if self.window.counters.get(counter):
                figures[name] = self.window.counters[counter] / self.window.seconds
        return figures

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; ``observation.json``."""
        window = self.window
        return {
            "format": "hisearch-observation",
            "version": 1,
            "complete": self.complete,
            "servers": [
                {
                    "engine": facts.engine,
                    "version": facts.version,
                    "model": facts.model,
                    "settings": dict(facts.settings),
                    "kv_tokens": facts.kv_tokens,
                    "gpu": facts.gpu,
                }
                for facts in self.servers
            ],
            "window_s": window.seconds,
            "figures": self.figures,
            "counters": dict(window.counters),
            "gauges": {name: {"mean": mean, "most": most} for name, (mean, most) in window.gauges.items()},
            "histograms": {name: _plain(histogram) for name, histogram in window.histograms.items()},
            "fares": list(self.fares),
            "odd": list(self.odd),
            "notes": list(self.notes),
        }

    def write(self, folder: str | Path) -> list[Path]:
        """Write what is known into a folder, made where absent.

        Returns:
            The files, ``observation.json`` the first.

        Raises:
            FileExistsError: the folder holds an observation; none is overwritten.
        """
        out = Path(folder)
        if (out / OBSERVATION).exists():
            raise FileExistsError(f"{out / OBSERVATION}: exists already; it is not overwritten")
        out.mkdir(parents=True, exist_ok=True)
        files = {OBSERVATION: json.dumps(self.to_dict(), indent=2) + "\n"}
        if self.deployment is not None:
            files[DEPLOYMENT] = document_text("Deployment", "observed", "As running servers say.", self.deployment)
        if self.generator is not None:
            workload = {"generator": self.generator}
            files[WORKLOAD] = document_text("Workload", "observed", losses(self.window)[0], workload)
        if self.window.steps:
            files[STEP_SUMS] = self._step_sums()
        for name, text in files.items():
            (out / name).write_text(text, encoding="utf-8")
        written = [out / name for name in files]
        if self.trace is not None:
            written.append(Path(shutil.copyfile(self.trace, out / TRACE)))
        if self.steps:
            (out / STEPS).write_bytes(b"".join(path.read_bytes() for path in self.steps))
            written.append(out / STEPS)
        return written

    def _step_sums(self) -> str:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("step", "latency_s", "prompts", "prompt_tokens", "decodes", "paused"))
        for step in self.window.steps:
            row = (step.number, f"{step.latency_s:.7g}", step.prompts, step.prompt_tokens, step.decodes, step.paused)
            writer.writerow(row)
        return text.getvalue()


def observe_servers(
    urls: Sequence[str],
    *,
    seconds: float = 60.0,
    interval_s: float = 1.0,
    model: str | None = None,
    accelerator: str | None = None,
    profile: str = "auto",
    arguments: Path | None = None,
    logs: Path | None = None,
    token: str | None = None,
    headers: Sequence[str] = (),
    ca: Path | None = None,
    report: Callable[[float], None] = lambda passed_s: None,
) -> Observation:
    """Watch running servers of one deployment.

    Args:
        urls: of the engines, not of a router in front of them; replicas of one model.
        seconds: how long they are watched.
        interval_s: between two looks.
        model: name or path of the Model; found by its name where absent.
        accelerator: name or path of the Accelerator; as the server tells where absent.
        profile: of the deployment that is written.
        arguments: a file with the servers' launch arguments, for what they do not tell.
        logs: folder of ``vllm_step_log``, whose steps and trace become part of the observation.
        token: sent as ``Authorization: Bearer``.
        headers: further ones, ``NAME: VALUE``.
        ca: file of certificates that are trusted.
        report: is told the seconds passed.

    Raises:
        ServerError: a server cannot be asked, or nothing is known of what it did.
        OSError, SpecError: a file, or a name, leads nowhere.
    """
    if not urls:
        raise ServerError("no server is named; expected an address such as http://10.0.0.7:8000")
    catalogue = Catalogue()
    stated = parse_arguments(arguments.read_text(encoding="utf-8")) if arguments is not None else {}
    sent = headers_of(token, tuple(headers))
    servers = [find(number, Client(url, sent, ca), stated) for number, url in enumerate(urls, 1)]
    _check_alike(servers)
    for kind, name in (("Model", model), ("Accelerator", accelerator)):
        if name is not None:
            catalogue.get(kind, name)
    complete = watch(servers, seconds, interval_s, report)
    window = window_of(servers)
    facts = tuple(server.facts for server in servers)
    notes = list(dict.fromkeys([*(note for each in facts for note in each.notes), *unreported(facts)]))
    notes += [note for server in servers for note in server.notes()]
    deployment, why = _deployment(facts, model, accelerator, profile, catalogue)
    trace, steps = _logs(logs)
    generator = None
    if trace is None:
        try:
            generator = generator_of(window, facts[0].max_context_tokens)
            notes += losses(window)
        except ValueError as error:
            notes.append(f"No workload: {error}")
    planned = _planned_kv_tokens(deployment, catalogue) if deployment is not None else None
    odd = what_is_odd(window, facts, planned)
    return Observation(
        facts, window, deployment, generator, trace, steps, tuple(how_it_fares(window)), tuple(odd),
        (*notes, *why), complete,
    )  # fmt: skip


def _check_alike(servers: Sequence[Watched]) -> None:
    """Refuse servers that are no replicas of one another."""
    first = servers[0]
    for server in servers[1:]:
        for what in ("engine", "model"):
            mine, theirs = getattr(first.facts, what), getattr(server.facts, what)
            if mine != theirs:
                raise ServerError(
                    f"{server.client.url}: {what} is {theirs}, that of {first.client.url} is {mine}; observe them apart"
                )


def _deployment(
    servers: Sequence[Facts], model: str | None, accelerator: str | None, profile: str, catalogue: Catalogue
) -> tuple[dict[str, Any] | None, list[str]]:
    """The deployment, or why there is none."""
    name = model or model_of(servers[0].model, catalogue)
    device = accelerator or accelerator_of(servers[0].gpu)
    missing = []
    if name is None:
        missing.append(f"the catalogue has no model '{servers[0].model}': name it or its config.json with --model")
    if device is None:
        missing.append("no server tells its accelerator: name it with --accelerator")
    if name is None or device is None:
        return None, [f"No deployment: {text}" for text in missing]
    return deployment_of(servers, model=_from_anywhere(name), accelerator=_from_anywhere(device), profile=profile), []


def _from_anywhere(ref: str) -> str:
    """A name, or an absolute path: the deployment is written into another folder."""
    path = Path(ref)
    return str(path.absolute()) if path.exists() else ref


def _planned_kv_tokens(deployment: Mapping[str, Any], catalogue: Catalogue) -> int | None:
    """KV tokens that a worker of the first pool is simulated with; None where it cannot be planned."""
    from hisearch.api.deployments.deployment import plan_pool
    from hisearch.api.observed import resolved_deployment

    try:
        return plan_pool(resolved_deployment(deployment, catalogue), 0).kv_capacity_tokens
    except ValueError:  # the deployment is written all the same: its own error says what is wrong when it is used
        return None


def _logs(folder: Path | None) -> tuple[Path | None, tuple[Path, ...]]:
    """Trace and steps of a folder of step logs.

    Raises:
        FileNotFoundError: there are none.
    """
    if folder is None:
        return None, ()
    steps = tuple(path for path in sorted(folder.glob("steps-*.jsonl")) if path.stat().st_size)
    traces = [path for path in sorted(folder.glob("trace-*.jsonl")) if path.stat().st_size]
    if not steps and not traces:
        raise FileNotFoundError(f"{folder}: expected steps-*.jsonl and trace-*.jsonl of vllm_step_log")
    if len(traces) > 1:
        raise ValueError(
            f"{folder}: {counted(len(traces), 'trace')}: put them together first (hisearch trace merge), or name a "
            "folder of one server"
        )
    return (traces[0] if traces else None), steps


def observed_load(folder: Path) -> Path:
    """An observation's trace, else its fitted workload.

    Raises:
        FileNotFoundError: the folder has neither.
    """
    load = next((folder / name for name in (TRACE, WORKLOAD) if (folder / name).is_file()), None)
    if load is None:
        raise FileNotFoundError(f"{folder}: expected {TRACE} or {WORKLOAD}; observe until enough requests have ended")
    return load


def _plain(histogram: Histogram) -> dict[str, Any]:
    """Finite bounds alone: the last count is of all values."""
    return {"bounds": list(histogram.bounds[:-1]), "counts": list(histogram.counts), "sum": histogram.total}
