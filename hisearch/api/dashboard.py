"""Runs in a browser, live: their reports, comparisons of two, and optuna-dashboard on all their trials.

A small WSGI application for one reader on one machine. It reads run folders and never writes into them:
optuna-dashboard works on a copy in memory; every request but GET and HEAD is refused.

==========================  ==========================================================================================
``/``                       all runs: progress and recommendation
``/runs/N/report.html``     the report of the N-th run, from 0; of a live run the report so far, which reloads itself
``/runs/N/so-far.html``     the report so far, without reloading
``/compare/N/M``            two runs that have ended, compared
``/dashboard``              optuna-dashboard, where it is installed; it answers ``/api``, ``/static``, ``/csv`` as well
==========================  ==========================================================================================
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from hisearch.api.run_folder import DATABASE, PROVENANCE, REPORT, check_one_model, has_ended
from hisearch.api.run_state import RunReader
from hisearch.api.studies.reporting import input_so_far
from hisearch.report.pages.dashboard_page import REPORT_REFRESH_S, RunState, render_index, render_refusal
from hisearch.search.records.run_studies import RunStudies

#: Says how to get optuna-dashboard.
NO_OPTUNA = "optuna-dashboard is not installed; pip install 'hisearch[dashboard]'"

#: First path components that optuna-dashboard answers.
_OPTUNA = frozenset({"dashboard", "api", "static", "csv", "favicon.ico"})

_StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_App = Callable[[dict[str, Any], _StartResponse], Iterable[bytes]]


class Dashboard:
    """The application. hosts: accepted Host headers; others are refused, against DNS rebinding."""

    def __init__(self, runs: Sequence[Path], hosts: Iterable[str]) -> None:
        """Serve ``runs``.

        Raises:
            FileNotFoundError: a folder holds no run.
            ValueError: a folder holds a run of several models.
        """
        for folder in runs:
            check_one_model(folder)
        self._runs = list(runs)
        self._hosts = frozenset(hosts)
        self._reader = RunReader()
        wsgi = _optuna_wsgi()
        self._studies = RunStudies([folder / DATABASE for folder in self._runs]) if wsgi is not None else None
        self._optuna: _App | None = wsgi(self._studies.storage) if wsgi is not None and self._studies else None
        self._compared: dict[tuple[int, int, int, int], str] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        if environ.get("HTTP_HOST", "").lower() not in self._hosts:
            return _answer(start_response, "403 Forbidden", "This address is not served.")
        if environ["REQUEST_METHOD"] not in {"GET", "HEAD"}:
            return _answer(start_response, "405 Method Not Allowed", "The dashboard only shows runs.")
        parts = [part for part in environ.get("PATH_INFO", "").split("/") if part]
        if parts and parts[0] in _OPTUNA:
            if self._optuna is None or self._studies is None:
                return _answer(start_response, "404 Not Found", NO_OPTUNA)
            self._studies.refresh()
            if parts[0] == "dashboard":
                return _without_changes(self._optuna, environ, start_response)
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
            return render_index(self.states(), optuna=self._optuna is not None)
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
        return [self._reader.state(folder) for folder in self._runs]

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


def _optuna_wsgi() -> Callable[[Any], _App] | None:
    """optuna-dashboard's application of a storage; None where it is not installed."""
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError as error:
        if error.name not in {"optuna_dashboard", "bottle"}:
            raise
        return None
    make: Callable[[Any], _App] = wsgi
    return make


#: Hides optuna-dashboard's controls that change a study: here each of them would be refused.
_NO_CHANGES = (
    b"<style>button:has(> :is([data-testid=AddBoxIcon], [data-testid=DriveFileRenameOutlineIcon], "
    b"[data-testid=DeleteIcon], [data-testid=EditIcon])), button:has(> span > [data-testid=AddBoxIcon]) "
    b"{ display: none !important; }</style></head>"
)


def _without_changes(app: _App, environ: dict[str, Any], start_response: _StartResponse) -> list[bytes]:
    """A page of optuna-dashboard without controls that cannot work."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    parts = app(environ, lambda status, headers, *_: started.append((status, headers)))
    content = b"".join(parts).replace(b"</head>", _NO_CHANGES, 1)
    close = getattr(parts, "close", None)
    if close is not None:
        close()
    status, headers = started[0]
    kept = [(name, value) for name, value in headers if name.lower() not in {"content-length", "etag", "last-modified"}]
    start_response(status, [*kept, ("Content-Length", str(len(content)))])
    return [content]


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


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


#: Names of this machine for itself, as browsers send them.
_OWN_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def hosts_of(host: str, port: int) -> frozenset[str]:
    """The Host headers of a server's own addresses; on port 80 browsers leave the port out."""
    own = f"[{host}]" if ":" in host else host.lower()
    names = _OWN_NAMES | {own}
    return frozenset(f"{name}:{port}" for name in names) | (names if port == 80 else frozenset())


def url_of(host: str, port: int) -> str:
    """The address of the first page."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}/" if port == 80 else f"http://{name}:{port}/"


def serve(runs: Sequence[Path], host: str, port: int) -> WSGIServer:
    """A server, bound and ready: ``serve_forever`` it. Port 0 takes any free one (``server_port``).

    Args:
        runs: run folders.
        host: address to listen on.
        port: port to listen on.

    Raises:
        FileNotFoundError: a folder holds no run.
        OSError: the port is taken.
    """
    kind = _Server6 if ":" in host else _Server
    server = make_server(host, port, lambda _environ, _start: [], server_class=kind, handler_class=_Quiet)
    try:
        server.set_app(Dashboard(runs, hosts_of(host, server.server_port)))
    except BaseException:
        server.server_close()
        raise
    return server
