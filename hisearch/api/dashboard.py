"""Runs in a browser, live: their reports, comparisons of two, and optuna-dashboard on all their trials.

A small WSGI application for one reader on one machine. It reads run folders and never writes into them:
optuna-dashboard works on a copy in memory; every request but GET and HEAD is refused.

==========================  ==========================================================================================
``/``                       all runs: progress and recommendation
``/runs/N/report.html``     the report of the N-th run, from 0; of a live run the report so far, which reloads itself
``/runs/N/so-far.html``     the report so far, without reloading
``/compare/N/M``            two runs that have ended, compared
``/dashboard``              optuna-dashboard; it answers ``/api``, ``/static`` and ``/csv`` as well
==========================  ==========================================================================================
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from hisearch.api.run_folder import CLOSEUP, DATABASE, JOURNAL, PROVENANCE, REPORT, check_one_model, has_ended
from hisearch.api.studies.reporting import input_so_far
from hisearch.report.pages.dashboard_page import REPORT_REFRESH_S, RunState, may_show, render_index, render_refusal
from hisearch.score.stated import stated
from hisearch.search.records.run_studies import RunStudies
from hisearch.specs.source import read_source

#: First path components that optuna-dashboard answers.
_OPTUNA = frozenset({"dashboard", "api", "static", "csv", "favicon.ico"})

_StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_App = Callable[[dict[str, Any], _StartResponse], Iterable[bytes]]


def run_state(folder: Path) -> RunState:
    """The state of the run in a folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is invalid.
    """
    study = read_source(folder / "study.yaml").data
    budget = int(study["spec"]["budget"]["simulations"])
    name = str(study["metadata"]["name"])
    if not has_ended(folder):
        begun = (folder / JOURNAL).is_file()
        return RunState(folder.name, name, False, _journalled(folder / JOURNAL), budget, has_report=begun)
    facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["budget"]
    shown = _shown(folder)
    return RunState(
        folder.name, name, True, int(facts["simulations_used"]), budget, str(facts["stopped"]),
        has_report=(folder / REPORT).is_file(), **shown,
    )  # fmt: skip


def _journalled(path: Path) -> int:
    """Number of complete lines of a journal after its header."""
    if not path.is_file():
        return 0
    return max(path.read_bytes().count(b"\n") - 1, 0)


def _shown(folder: Path) -> dict[str, Any]:
    """The trial that the report shows, from ``closeup.json`` and ``trials.parquet``; empty without the former."""
    import pandas as pd

    if not (folder / CLOSEUP).is_file():
        return {}
    number = int(json.loads((folder / CLOSEUP).read_text(encoding="utf-8"))["trial"])
    frame = pd.read_parquet(folder / "trials.parquet")
    row = frame[frame["number"] == number].iloc[0]
    metrics = {name: float(row[name]) for name in frame.columns if may_show(name) and pd.notna(row[name])}
    return {
        "trial": number,
        "description": str(row["description"]),
        "feasible": bool(row["feasible"]),
        "asked": stated(name.removeprefix("margin_") for name in frame.columns if name.startswith("margin_")),
        "metrics": metrics,
    }


class NoDashboardError(ValueError):
    """optuna-dashboard, an optional dependency, is not installed."""

    def __init__(self) -> None:
        super().__init__("optuna-dashboard is not installed; pip install 'hisearch[dashboard]'")


class Dashboard:
    """The application. hosts: accepted Host headers; others are refused, against DNS rebinding."""

    def __init__(self, runs: Sequence[Path], hosts: Iterable[str]) -> None:
        """Serve ``runs``.

        Raises:
            FileNotFoundError: a folder holds no run.
            ValueError: a folder holds a run of several models.
            NoDashboardError: optuna-dashboard is missing.
        """
        for folder in runs:
            check_one_model(folder)
        self._runs = list(runs)
        self._hosts = frozenset(hosts)
        self._studies = RunStudies([folder / DATABASE for folder in self._runs])
        self._optuna = _optuna_app(self._studies)
        self._compared: dict[tuple[int, int, int, int], str] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if environ.get("HTTP_HOST", "") not in self._hosts:
            return _answer(start_response, "403 Forbidden", "This address is not served.")
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _answer(start_response, "405 Method Not Allowed", "The dashboard only shows runs.")
        parts = [part for part in environ.get("PATH_INFO", "").split("/") if part]
        if parts and parts[0] in _OPTUNA:
            self._studies.refresh()
            return self._optuna(environ, start_response)
        try:
            return _answer(start_response, "200 OK", self._page(parts))
        except LookupError as error:
            return _answer(start_response, "404 Not Found", str(error.args[0]))
        except (ValueError, OSError) as error:
            return _answer(start_response, "500 Internal Server Error", str(error))

    def _page(self, parts: list[str]) -> str | bytes:
        """The page at an address.

        Raises:
            LookupError: there is none.
        """
        if not parts:
            return render_index(self.states())
        if len(parts) == 3 and parts[0] == "runs" and parts[2] == "report.html":
            folder = self._runs[self._number(parts[1])]
            if not has_ended(folder):
                return self._report_so_far(folder, REPORT_REFRESH_S, "so-far.html")
            report = folder / REPORT
            if not report.is_file():
                raise LookupError(f"{folder.name} has no report: make one with hisearch report {folder}.")
            return report.read_bytes()
        if len(parts) == 3 and parts[0] == "runs" and parts[2] == "so-far.html":
            folder = self._runs[self._number(parts[1])]
            if has_ended(folder):
                raise LookupError(f"{folder.name} has ended: its report is in the list of runs.")
            return self._report_so_far(folder, 0, "report.html")
        if len(parts) == 3 and parts[0] == "compare":
            return self._comparison(self._number(parts[1]), self._number(parts[2]))
        raise LookupError("There is no such page.")

    def states(self) -> list[RunState]:
        """The current state of every run."""
        states = [run_state(folder) for folder in self._runs]
        return [state if state.ended else self._so_far(number, state) for number, state in enumerate(states)]

    def _so_far(self, number: int, state: RunState) -> RunState:
        """The state with the best deployment so far."""
        best = self._studies.best_so_far(number, state.study)
        if best is None:
            return state
        facts = best.user_attrs
        return replace(
            state,
            trial=int(facts["number"]),
            description=str(facts["deployment"]),
            feasible=True,
            asked=stated(best.constraints),
            metrics={name: float(value) for name, value in facts["metrics"].items() if may_show(name)},
        )

    def _report_so_far(self, folder: Path, refresh_s: int, other: str) -> str:
        """The report of a live run, drawn anew."""
        from hisearch.report.pages.html import render

        with self._lock:  # one report at a time: drawing takes a second of a core that the study could use
            return render(input_so_far(folder, refresh_s=refresh_s, other=other))

    def _number(self, text: str) -> int:
        if not text.isdecimal() or int(text) >= len(self._runs):
            raise LookupError("There is no such run.")
        return int(text)

    def _comparison(self, a: int, b: int) -> str:
        """The page; cached until either run is written anew, as it takes simulations."""
        from hisearch.api.compare import compare_runs
        from hisearch.report.pages.comparison_page import render_comparison

        ends = [self._runs[number] / PROVENANCE for number in (a, b)]
        for end in ends:
            if not end.is_file():
                raise LookupError(f"{end.parent.name} has not ended: only runs that have can be compared.")
        key = (a, b, ends[0].stat().st_mtime_ns, ends[1].stat().st_mtime_ns)
        with self._lock:
            if key not in self._compared:
                self._compared[key] = render_comparison(compare_runs(self._runs[a], self._runs[b]), home="/")
            return self._compared[key]


def _optuna_app(studies: RunStudies) -> _App:
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError as error:
        if error.name not in {"optuna_dashboard", "bottle"}:
            raise
        raise NoDashboardError from None
    app: _App = wsgi(studies.storage)
    return app


def _answer(start_response: _StartResponse, status: str, content: str | bytes) -> list[bytes]:
    """Send a page, or a refusal rendered as a page."""
    if isinstance(content, str):
        content = (content if status.startswith("200") else render_refusal(content)).encode()
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(content))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
    ]
    start_response(status, headers)
    return [content]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


def serve(runs: Sequence[Path], host: str, port: int) -> WSGIServer:
    """A server, bound and ready: ``serve_forever`` it. Port 0 takes any free one (``server_port``).

    Args:
        runs: run folders.
        host: address to listen on.
        port: port to listen on.

    Raises:
        FileNotFoundError: a folder holds no run.
        NoDashboardError: optuna-dashboard is missing.
        OSError: the port is taken.
    """
    server = make_server(host, port, lambda _environ, _start: [], server_class=_Server, handler_class=_Quiet)
    try:
        names = {host, "localhost", "127.0.0.1"} if host == "127.0.0.1" else {host, "localhost"}
        server.set_app(Dashboard(runs, {f"{name}:{server.server_port}" for name in names}))
    except BaseException:
        server.server_close()
        raise
    return server
