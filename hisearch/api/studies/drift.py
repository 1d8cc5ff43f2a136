"""What has changed around a run since it was made: prices, other documents, the trace file. The run keeps its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hisearch.score.quantities import usd
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.kept import changed_since
from hisearch.specs.documents.resolved import ResolvedStudy, file_digest

#: Kinds of document, as a sentence names them.
_WORDS = {
    "SLO": "the SLO", "SearchSpace": "the search space", "Workload": "the workload", "Model": "the model",
    "LatencyProfile": "the latency profile", "Host": "the host", "Medium": "the medium", "Fabric": "the fabric",
    "Accelerator": "the accelerator", "Device": "the device",
}  # fmt: skip


def drift_notes(resolved: ResolvedStudy) -> tuple[str, ...]:
    """A sentence for each input of a run that is another one today; empty for a study that is in no run folder."""
    if resolved.kept is None:
        return ()
    notes = [_about(key, then, now) for key, then, now in changed_since(resolved.kept)]
    return (*notes, *_about_trace(resolved))


def _about(key: str, then: Document[Any], now: Document[Any] | None) -> str:
    kind, _, ref = key.partition("/")
    if now is None:
        return f"The catalogue has no usable {ref} any more ({_WORDS[kind]}): this run uses its own copy."
    (price_then, unit), (price_now, _) = _price(then.spec), _price(now.spec)
    if price_then is not None and price_now is not None and price_then != price_now:
        return f"{ref} costs {usd(price_now)} per {unit} in the catalogue now, {usd(price_then)} in this run."
    return f"{_WORDS[kind][0].upper()}{_WORDS[kind][1:]} {ref} is another one in the catalogue now than in this run."


def _price(spec: Any) -> tuple[float | None, str]:
    """Dollars, and per what; None where a document has no price."""
    if hasattr(spec, "price"):
        return spec.price.usd_per_hour, "hour"
    if hasattr(spec, "usd_per_gib_hour"):
        return spec.usd_per_gib_hour, "GiB and hour"
    return None, ""


def _about_trace(resolved: ResolvedStudy) -> tuple[str, ...]:
    file, pinned = resolved.trace_file, resolved.study.pins.get("trace")
    if file is None or pinned is None or resolved.kept_trace is None:
        return ()
    if not Path(file).is_file():
        return (f"The trace file {file} is gone: this run uses the trace that it has kept.",)
    if file_digest(file) != pinned:
        return (f"The trace file {file} has changed: this run uses the trace that it has kept.",)
    return ()
