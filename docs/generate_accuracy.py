"""Writes every table and figure of docs/accuracy.md and docs/accuracy-details.md that is measured, between its markers.

Usage::

    python docs/generate_accuracy.py                          # computes what the data at hand allow, prints it
    python docs/generate_accuracy.py --write                  # writes it into the two pages and docs/images
    python docs/generate_accuracy.py --write --shared FOLDER  # where measured data lie; HISEARCH_SHARED if absent
    python docs/generate_accuracy.py --write --refit          # fits host work anew first (40 minutes)
    python docs/generate_accuracy.py --write --only e2e batch # some sections alone

FOLDER holds ``validation/`` (``vllm_scheduler``, ``sglang_scheduler``, ``vllm_e2e``, ``vllm_open_loop``,
``silicon/measured.csv`` and ``blackwell.csv``) and ``traces/mooncake/conversation_trace.jsonl.gz``. A section whose
data are absent stays as it is and is named on standard error. A column of aiconfigurator's own predictions needs that
package (extra ``aic``).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import host_tables
import kv_logs
import mlperf_table
import yaml
from silicon_tables import block, disaggregated, figures, percent, table

from hisearch.base.one_thread import on_one_thread
from hisearch.calibrate.writing import profile_yaml
from hisearch.latency.measured import operator_tables
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.load import load_trace_file
from hisearch.validate.cache import POLICIES, cache_points
from hisearch.validate.cache_settings import CacheSettings
from hisearch.validate.e2e import validate_cases

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from refit.host_fit.run import fit_hosts, write_judged  # noqa: E402
from refit.hosts import FILE as HOSTS  # noqa: E402
from refit.hosts import with_hosts  # noqa: E402

FRONT, PAGE, IMAGES = (ROOT / "docs" / name for name in ("accuracy.md", "accuracy-details.md", "images"))
PROFILES = ROOT / "profiles" / "latency"
ERRORS = ROOT / "hisearch" / "latency" / "served_errors.yaml"
#: What the last fit of host work came to (``python -m refit hosts --json``).
JUDGED = ROOT / "docs" / "host_fit.json"
BEGIN, END = "<!-- {}: written by docs/generate_accuracy.py -->", "<!-- {}: end -->"

#: Recordings with cache tiers, which come last.
TIERED = ("hicache_", "storage_")

#: Capacities of the cache alone, tokens; of the single run whose time is stated; pages.
CAPACITIES, PAGES = (1_000_000, 5_000_000, 20_000_000), (512, 16)
#: Settings of policies that have any.
CACHE_SETTINGS = {"tlru": CacheSettings(tail_tokens=8192, turn_tokens=2000), "ttl": CacheSettings(ttl_s=300.0)}


#: Terms of attention whose worth is stated, on one run: parts of ``AttentionTables``.
TERMS_RUN = "rtxpro6000-llama-3.1-8b-tp1"
TERMS = {
    "nothing": (),
    "batches of unequal contexts (`skew_s`, `late`)": ("skew", "late"),
    "that decodes take longer in mixed steps (`mixed_decode_s`, `late`)": ("mixed", "late"),
}


class Data(NamedTuple):
    """Where measured data lie, and whether host work is fitted anew."""

    shared: Path
    refit: bool

    @property
    def validation(self) -> Path:
        """Recordings and measurements."""
        return self.shared / "validation"

    @property
    def mooncake(self) -> Path:
        """The published conversation trace."""
        return self.shared / "traces" / "mooncake" / "conversation_trace.jsonl.gz"


class Absent(Exception):  # noqa: N818
    """Data of a section are not there."""


def there(paths: list[Path], what: str) -> list[Path]:
    """``paths``, sorted.

    Raises:
        Absent: none is there.
    """
    existing = sorted(path for path in paths if path.exists())
    if not existing:
        raise Absent(f"no {what}")
    return existing


def hisearch(*arguments: str | Path) -> Any:
    """What a command of hisearch prints with ``--json``; its progress goes to standard error."""
    command = [sys.executable, "-m", "hisearch", *map(str, arguments), "--json"]
    print("running hisearch", *map(str, arguments), file=sys.stderr, flush=True)
    return json.loads(subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout)


def scheduler(data: Data) -> str:
    """Recordings of the engines' own schedulers."""
    folders = {"vLLM": "vllm_scheduler", "SGLang": "sglang_scheduler"}
    body = []
    for title, folder in folders.items():
        files = there(list((data.validation / folder).glob("*.json.gz")), f"recordings in {data.validation / folder}")
        files.sort(key=lambda path: path.name.startswith(TIERED))
        # The clock of the first round's recorder of SGLang skipped passes of an idle scheduler.
        clock = ("--skip-idle-passes",) if title == "SGLang" else ()
        for case in hisearch("validate", "scheduler", *files, "-q", *clock)["cases"]:
            steps = f"{case['equal_steps']:,}" + ("" if case["ok"] else f" of {case['steps']:,}")
            name = Path(case["file"]).name.removesuffix(".json.gz")
            body.append([f"{title} `{name}`", str(case["requests"]), steps, str(case["preempted"])])
    return table(("recording", "requests", "steps, all equal", "preempted or retracted"), body)


def cache(data: Data) -> str:
    """The cache alone on Mooncake's conversation trace: hits of each policy, and the time of one capacity."""
    trace = load_trace_file(there([data.mooncake], f"trace at {data.mooncake}")[0])
    body = []
    for name in POLICIES:
        points = cache_points(trace, CAPACITIES, [name], page_tokens=PAGES[0], settings=_settings(name))
        cells = [
            f"`{name}`" + (" (oracle)" if points[0].oracle else ""),
            *(percent(point.hit_rate) for point in points),
        ]
        body.append([*cells, *(_processor_time(trace, name, page) for page in PAGES)])
    capacities = [f"{tokens // 1_000_000} M tokens" for tokens in CAPACITIES]
    return table(("policy", *capacities, *(f"time, {page}-token pages" for page in PAGES)), body)


def _settings(policy: str) -> CacheSettings:
    """What ``policy`` needs; others refuse it."""
    return CACHE_SETTINGS.get(policy, CacheSettings())


def _processor_time(trace: CompiledTrace, policy: str, page: int) -> str:
    """Of one capacity; the first run compiles. lru gives the whole curve in one pass."""
    for _ in range(2):
        start = time.process_time()
        cache_points(trace, CAPACITIES[1:2], [policy], page_tokens=page, settings=_settings(policy))
        spent = time.process_time() - start
    return f"{spent:.2g} s" + (" for the whole curve" if policy == "lru" else "")


def memory(_data: Data) -> str:
    """KV capacity as planned, against what engines logged."""
    return table(kv_logs.HEADS, kv_logs.rows(Catalogue()))


def e2e(data: Data) -> str:
    """Served workloads, end to end, with the predicted capacity."""
    folders = there(list((data.validation / "vllm_e2e").glob("*")), f"runs in {data.validation / 'vllm_e2e'}")
    body = []
    for case in hisearch("validate", "e2e", *folders, "-q")["cases"]:
        if case["capacity"] != "predicted":
            continue
        means = [case["metrics"][name]["mean"]["error"] for name in ("ttft_s", "tpot_s", "latency_s")]
        peer = case["peer_mean_abs_error"]
        cells = [case["case"], *(percent(error, "+") for error in (*means, case["output_tokens_per_s"]["error"]))]
        body.append(
            [
                *cells,
                f"**{case['mean_abs_error']:.2%}**".replace("%", " %"),
                "" if peer is None else f"{peer:.2%}".replace("%", " %"),
            ]
        )
    head = ("run", "TTFT mean", "TPOT mean", "latency mean", "output tokens/s", "mean of all 15", "LLMServingSim 2.0")
    return table(head, body)


def terms(data: Data) -> str:
    """The run of the smallest model without a term of its attention."""
    folder = there([data.validation / "vllm_e2e" / TERMS_RUN], f"run {TERMS_RUN}")
    body = []
    for title, absent in TERMS.items():
        with without(absent):
            case = next(case for case in validate_cases(folder) if case.capacity == "predicted")
        body.append([title, percent(case.mean_abs_error)])
    return table(("left out", "mean absolute error"), body)


@contextlib.contextmanager
def without(absent: Sequence[str]) -> Iterator[None]:
    """Tables of attention lack these parts meanwhile."""
    whole = operator_tables.attention_tables

    def partly(*arguments: Any) -> operator_tables.AttentionTables:
        return dataclasses.replace(whole(*arguments), **dict.fromkeys(absent))

    operator_tables.attention_tables = partly
    operator_tables.read_tables.cache_clear()
    try:
        yield
    finally:
        operator_tables.attention_tables = whole
        operator_tables.read_tables.cache_clear()


def batch(data: Data) -> str:
    """Attention of single batches, part of the rows held out."""
    runs, body = data.validation / "vllm_e2e", []
    for name in ("attention", "skew"):
        files = there(list(runs.glob(f"*/operators/tp*/{name}.csv*")), f"{name}.csv in {runs}")
        for of in hisearch("validate", "batch", *files)["files"]:
            path = Path(of["file"]).relative_to(runs)
            title = "/".join(part for part in path.parts if part != "operators").removesuffix(".gz")
            body.append([title, *(percent(of[figure]) for figure in ("median_ape", "p90_ape", "mape"))])
    return table(("file", "median error", "p90", "mean"), body)


def carry_hosts() -> None:
    """Write the fitted host work into the shipped profiles."""
    for path in sorted(PROFILES.glob("*.yaml")):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        if document["spec"]["estimator"] in ("scaled", "tables"):
            profile = with_hosts(LatencyProfileSpec.model_validate(document["spec"]))
            path.write_text(profile_yaml(**document["metadata"], profile=profile), encoding="utf-8")


def hosts(data: Data) -> str:
    """Host work and what it was judged by; with ``refit``, fitted and written first."""
    if data.refit:
        files = there(sorted((data.validation / "silicon").glob("*.csv")), f"runs in {data.validation / 'silicon'}")
        folder = there([data.validation / "vllm_open_loop"], f"runs in {data.validation / 'vllm_open_loop'}")[0]
        served = there(sorted((data.validation / "vllm_e2e").glob("*/")), f"cases in {data.validation / 'vllm_e2e'}")
        judged = on_one_thread(fit_hosts)(files, [folder], served, processes=2, note=_progress)
        write_judged(judged, HOSTS, ERRORS, ", ".join(path.name for path in (*files, folder, *served)))
        figures = {"runs": judged.runs, "errors": judged.errors, "coverage": judged.coverage}
        JUDGED.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        carry_hosts()
    return host_tables.details(_judged(), yaml.safe_load(HOSTS.read_text(encoding="utf-8")))


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def expect(_data: Data) -> str:
    """What to expect of each figure, by situation."""
    return host_tables.front(_judged())


def _judged() -> dict[str, Any]:
    judged: dict[str, Any] = json.loads(JUDGED.read_text(encoding="utf-8"))
    return judged


def open_loop(data: Data) -> str:
    """Open-loop runs, and what four other simulators predicted of them."""
    folder = there([data.validation / "vllm_open_loop"], f"runs in {data.validation / 'vllm_open_loop'}")[0]
    return host_tables.open_loop(hisearch("validate", "open-loop", folder, "-q"), folder / "others.csv")


def silicon(data: Data) -> str:
    """Measured serving runs of aggregated workers."""
    report, rows = _runs(data, "agg")
    for name, figure in figures(rows).items():
        (IMAGES / name).write_text(figure, encoding="utf-8")
    return block(report, rows)


def mlperf(data: Data) -> str:
    """The largest rates of tuned submissions, beside those of a search."""
    folder = there([data.validation / "mlperf"], f"results in {data.validation / 'mlperf'}")[0]
    cells = hisearch("validate", "mlperf", folder, "-q")["cells"]
    (IMAGES / mlperf_table.FIGURE).write_text(mlperf_table.figure(cells), encoding="utf-8")
    return mlperf_table.mlperf(cells)


def runs_disaggregated(data: Data) -> str:
    """Measured serving runs with disaggregated prefill and decode."""
    return disaggregated(*_runs(data, "disagg"))


def blackwell(data: Data) -> str:
    """Runs on B300 and GB200, aggregated ones and those with disaggregated prefill and decode."""
    (together, _), (split, _) = (_runs(data, mode, "blackwell.csv") for mode in ("agg", "disagg"))
    return host_tables.blackwell(together, split)


def _runs(data: Data, mode: str, name: str = "measured.csv") -> tuple[dict[str, Any], list[dict[str, str]]]:
    file = there([data.validation / "silicon" / name], f"{name} in {data.validation / 'silicon'}")[0]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.csv"
        report = hisearch("validate", "silicon", file, "--where", f"mode={mode}", "--rows", out)
        with out.open(newline="", encoding="utf-8") as stream:
            return report, list(csv.DictReader(stream))


#: Sections by the name of their markers, in the order in which they are computed: constants before what they price.
SECTIONS: dict[str, Callable[[Data], str]] = {
    "hosts": hosts,
    "expect": expect,
    "open-loop": open_loop,
    "silicon": silicon,
    "blackwell": blackwell,
    "disaggregated": runs_disaggregated,
    "scheduler": scheduler,
    "cache": cache,
    "memory": memory,
    "e2e": e2e,
    "terms": terms,
    "batch": batch,
    "mlperf": mlperf,
}


#: Sections of docs/accuracy.md; the others are docs/accuracy-details.md's.
ON_FRONT = frozenset({"expect"})


def written(page: str, name: str, text: str) -> str:
    """``page`` with ``text`` between the markers of section ``name``."""
    begin, end = BEGIN.format(name), END.format(name)
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}"


def main() -> int:
    """Compute the sections; 1 if some had no data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--shared", type=Path, default=os.environ.get("HISEARCH_SHARED"), help="where measured data lie"
    )
    parser.add_argument("--refit", action="store_true", help="fit the host work of engines anew")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--write", action="store_true", help="into the pages")
    given = parser.parse_args()
    data, skipped = Data(Path(given.shared or "measured-data").resolve(), given.refit), []
    for name in (name for name in SECTIONS if name in given.only):
        try:
            text = SECTIONS[name](data)
        except Absent as reason:
            skipped.append(name)
            print(f"SKIPPED {name}: {reason}; its tables stay as they are", file=sys.stderr, flush=True)
            continue
        if given.write:
            page = FRONT if name in ON_FRONT else PAGE
            page.write_text(written(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")
        else:
            print(text, end="\n\n")
    if skipped:
        print(f"SKIPPED {', '.join(skipped)}: give --shared FOLDER or set HISEARCH_SHARED", file=sys.stderr)
    return int(bool(skipped))


if __name__ == "__main__":
    sys.exit(main())
