"""``hisearch doctor``: the installation, or one document, checked without running anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hisearch.cli import options
from hisearch.cli.errors import ERROR

if TYPE_CHECKING:
    from hisearch.search.model.fit import Fit
    from hisearch.specs.checks.doctor import Checkup

_PACKAGES = ("hisearch", "numpy", "numba", "llvmlite", "scipy", "pandas", "pyarrow", "optuna", "moocore", "plotly")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
#: Facts about a model whose key is no phrase -> how they are called.
_LABELS = {
    "weights_gib": "weights (GiB)",
    "kv_bytes_per_token": "KV bytes per token",
    "window_kv_bytes_per_token": "KV bytes more, of tokens in a window",
    "state_bytes_per_request": "state bytes per request",
}


def doctor(
    file: Annotated[
        str | None, typer.Argument(metavar="[DOCUMENT]", help="A document of any kind, or a model's config.json.")
    ] = None,
    settings: options.Setting = None,
    as_json: options.Json = False,
) -> None:
    """Check the installation, or a document without running it.

    Of a document, all that it names is checked too; of studies and deployments also which workers can be built; of
    studies and workloads what the trace's file was taken for, and which of its requests the model would reject.
    """
    from hisearch.cli import output

    if file is None:
        facts = installation()
        shown = {name: _shown(value) for name, value in facts.items()}
        output.result(as_json, lambda: facts, lambda: output.pairs(shown))
        return
    from hisearch.specs.checks.doctor import load_any

    overrides = tuple(settings or ())
    checkup = load_any(_path_of(file), overrides)
    fits = _fits(checkup, overrides)
    about = _about_model(checkup)
    problems = [str(problem) for problem in checkup.problems]
    warnings = [str(warning) for warning in checkup.warnings] + list(
        dict.fromkeys(fit.note for fit in fits if fit.note)
    )
    if checkup.ok and checkup.kind == "Deployment" and all(fit.ok for fit in fits):
        problems += _judge_plan(checkup, overrides)
    notes: list[str] = []
    if checkup.ok and checkup.kind in ("Study", "Workload"):
        notes, trace_warnings, unreadable = _judge_trace(checkup, overrides)
        warnings += trace_warnings
        problems += unreadable
    problems += _misfits(checkup, fits)
    if as_json:
        facts = _to_dict(checkup, fits, problems, warnings) | {"notes": notes}
        output.print_json(facts | ({"model": about} if about else {}))
    else:
        _show(checkup, fits, problems, warnings, notes)
        output.pairs({_LABELS.get(name, name.replace("_", " ")): _amount(value) for name, value in about.items()})
    if problems:
        raise typer.Exit(ERROR)


def installation() -> dict[str, Any]:
    """Versions, caches, cores, and the optional programs that are installed."""
    import os
    import platform
    import shutil
    from importlib.metadata import version

    from hisearch.base import prebuilt
    from hisearch.base.folders import COMPILED_KERNELS
    from hisearch.base.kernel_cache import folder_of
    from hisearch.kernels.fleet import cluster
    from hisearch.kernels.fleet.compilation import event_loop_is_compiled
    from hisearch.specs.documents.catalogue import shipped_root
    from hisearch.traces.cache import cache_folder

    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cores": os.cpu_count() or 1,
        "catalogue": str(shipped_root()),
        "kernel_cache": str(COMPILED_KERNELS),
        "prebuilt_kernels": prebuilt.state(folder_of(cluster.__name__).name),
        "kernels_compiled": event_loop_is_compiled(),
        "trace_cache": str(cache_folder()),
        "optuna_dashboard": _version_of("optuna-dashboard"),
        "chromium": next((path for name in _BROWSERS if (path := shutil.which(name))), None),
    }


def _version_of(package: str) -> str | None:
    """Version of an optional package; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, text in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "not installed" if value is None else str(value)


def _path_of(ref: str) -> str:
    """A path as it is; a catalogue name's file, of the first kind that has it.

    Raises:
        UnknownReferenceError: no kind has that name.
    """
    from hisearch.cli import output
    from hisearch.specs.documents.catalogue import Catalogue, is_path
    from hisearch.specs.documents.kinds import KINDS
    from hisearch.specs.errors import UnknownReferenceError

    if is_path(ref):
        return ref
    catalogue = Catalogue()
    kinds = [kind for kind in KINDS if ref in catalogue.names(kind)]
    if not kinds:
        if Path(ref).exists():
            raise catalogue.unknown(ref, "", ())
        raise UnknownReferenceError.at(f"no document named '{ref}'; `hisearch list` shows what there is")
    if len(kinds) > 1:
        output.note(f"'{ref}' is a {kinds[0]} and also a {', a '.join(kinds[1:])}; give a path to check those")
    return str(catalogue.locate(kinds[0], ref))


def _fits(checkup: Checkup, settings: tuple[str, ...]) -> list[Fit]:
    """Memory fit of a study's or a deployment's workers; empty unless the document is valid."""
    from hisearch.search.model.fit import deployment_fits, study_fits
    from hisearch.specs.documents.resolve import load_deployment, load_study
    from hisearch.specs.documents.resolve_fleet import load_fleet_study

    if not checkup.ok or checkup.kind not in {"Study", "FleetStudy", "Deployment"}:
        return []
    if checkup.kind == "FleetStudy":
        parts = load_fleet_study(checkup.path, settings).parts.items()
        return [replace(fit, pool=name) for name, study in parts for fit in study_fits(study)]
    if checkup.kind == "Study":
        return study_fits(load_study(checkup.path, settings))
    return deployment_fits(load_deployment(checkup.path, settings))


def _about_model(checkup: Checkup) -> dict[str, Any]:
    """Figures of a valid model, to compare with its publisher's; empty for other documents."""
    from hisearch.latency.parameters import (
        active_parameter_count,
        kv_bytes_per_token_per_rank,
        parameter_count,
        state_bytes_per_sequence_per_rank,
        weight_bytes_per_rank,
        window_kv_bytes_per_token_per_rank,
    )
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.specs.models.model import names_weights
    from hisearch.specs.models.pages import usual_kv_dtype

    if not checkup.ok or checkup.kind != "Model":
        return {}
    model = Catalogue().get("Model", str(checkup.path)).spec
    kv_dtype = usual_kv_dtype(model)
    some = {
        "window_kv_bytes_per_token": window_kv_bytes_per_token_per_rank(model, 1, kv_dtype),
        "state_bytes_per_request": state_bytes_per_sequence_per_rank(model, 1),
    }
    id_note = "" if names_weights(model.huggingface_id) else " (no Hugging Face id: exports ask for MODEL)"
    return {
        "served_as": f"{model.huggingface_id}{id_note}",
        "parameters": parameter_count(model),
        **({} if model.moe is None else {"active_parameters": active_parameter_count(model)}),
        "weights_gib": weight_bytes_per_rank(model, 1, model.weight_dtype) / 2**30,
        "weight_dtype": model.weight_dtype,
        "kv_bytes_per_token": kv_bytes_per_token_per_rank(model, 1, kv_dtype),
        **{name: size for name, size in some.items() if size},
        "max_context_tokens": model.max_context_tokens,
    }


def _amount(value: Any) -> str:
    """``32.8 billion`` of large counts, else as it is."""
    if isinstance(value, int | float) and value >= 1e9:
        return f"{value / 1e9:,.4g} billion"
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1e3 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _misfits(checkup: Checkup, fits: list[Fit]) -> list[str]:
    """Pools of a deployment whose worker does not fit; for a study, a problem if no worker fits."""
    if len(fits) > 1 and checkup.kind == "Deployment":
        return [f"{checkup.name}: pool {fit.pool}: {fit.problem}" for fit in fits if not fit.ok]
    if not fits or any(fit.ok for fit in fits):
        return []
    nearest = min(fits, key=lambda fit: fit.gib_short)
    return [f"{checkup.name}: no worker fits; nearest: {nearest.problem}"]


def _judge_plan(checkup: Checkup, settings: tuple[str, ...]) -> list[str]:
    """What a simulation would refuse of a deployment that fits into memory, such as its cache tiers."""
    from hisearch.api.deployments.deployment import plan_deployment
    from hisearch.specs.documents.resolve import load_deployment
    from hisearch.specs.errors import SpecError

    try:
        plan_deployment(load_deployment(checkup.path, settings))
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    except ValueError as refused:
        return [f"{checkup.name}: {refused}"]
    return []


def _judge_trace(checkup: Checkup, settings: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
    """Notes, warnings and problems of the trace of a study or workload.

    What its file was taken for; what a study's model would reject; why it cannot be read.
    """
    from hisearch.api.studies.study import load_study
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.specs.errors import SpecError
    from hisearch.traces.load import load_document
    from hisearch.traces.stats import window_warning

    rejected = None
    try:
        if checkup.kind == "Workload":
            workload = Catalogue().get("Workload", str(checkup.path))
            if workload.spec.file is None:
                return [], [], []
            trace = load_document(workload)
        else:
            study = load_study(checkup.path, settings)
            trace, model = study.trace, study.resolved.model
            if over := window_warning(trace, model.spec.max_context_tokens):
                rejected = f"{trace.name} on {model.name}: {over}"
    except SpecError as error:
        return [], [], [str(problem) for problem in error.problems]
    return list(trace.notes), [*trace.cautions, *([rejected] if rejected else [])], []


def _show(checkup: Checkup, fits: list[Fit], problems: list[str], warnings: list[str], notes: list[str]) -> None:
    from hisearch.cli import output

    state = "cannot be used" if problems else "ok"
    output.say(f"{checkup.kind or 'document'} {checkup.name}: {state}", bold=True)
    for problem in problems:
        output.say(f"problem: {problem}")
    for warning in warnings:
        output.say(f"warning: {warning}")
    for note in notes:
        output.say(f"trace: {note}")
    if fits:
        output.heading(f"Workers that fit into memory and host: {sum(fit.ok for fit in fits)} of {len(fits)}")
        named = checkup.kind != "Study" and len(fits) > 1
        part = "model" if checkup.kind == "FleetStudy" else "pool"
        rows = [
            {
                **({part: fit.pool} if named else {}),
                "accelerator": fit.accelerator,
                "engine": fit.engine,
                "TP": fit.parallelism.short.removeprefix("TP "),
                "weights": fit.weight_dtype,
                "KV": fit.kv_dtype,
                "chunk": f"{fit.chunk_tokens:,}",
                "running": fit.max_running_requests,
                "KV capacity": _format_kv_space(fit),
            }
            for fit in fits
        ]
        output.records(rows, text=(part, "accelerator", "engine", "weights", "KV", "KV capacity"))
        output.say(_assumed(checkup.kind, fits))


def _assumed(kind: str | None, fits: list[Fit]) -> str:
    """The settings assumed by the table's figures."""
    from hisearch.specs.wording import listed

    fractions = ", ".join(sorted({f"{fit.memory_fraction:g}" for fit in fits}))
    text = "KV capacity of one replica's accelerators, of each attention group (DP), at memory fraction "
    text += f"{fractions}, without host memory"
    if longest := {fit.request_tokens for fit in fits if fit.ok and fit.request_tokens}:
        lengths = listed([f"{tokens:,}" for tokens in sorted(longest)])
        text += f"; of models with sliding windows, in requests of {lengths} tokens"
    if kind == "Deployment":
        return f"{text}."
    return (
        f"{text}; of the space's chunk sizes (tokens) and running requests those that leave the most. Other ones "
        "may leave less."
    )


def _format_kv_space(fit: Fit) -> str:
    if fit.ok:
        return f"{fit.kv_capacity_tokens:,} tokens"
    return f"{fit.gib_short:.2f} GiB short on each rank" if fit.gib_short < float("inf") else fit.problem


def _to_dict(checkup: Checkup, fits: list[Fit], problems: list[str], warnings: list[str]) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "path": checkup.path,
        "kind": checkup.kind,
        "name": checkup.name,
        "ok": not problems,
        "problems": problems,
        "warnings": warnings,
        "fits": [{**asdict(fit), "ok": fit.ok} for fit in fits],
    }
