"""The dashboard: what it serves, what it refuses, and that it follows a run."""

from __future__ import annotations

import builtins
import io
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hisearch.api.studies.study import load_study
from hisearch.report.pages.dashboard_page import may_show, shown_metrics
from tests import chromium
from tests.cli.conftest import Hisearch
from tests.cli.documents import STUDY

HOST = "127.0.0.1:8080"
PICTURES = Path(__file__).parents[2] / "build" / "pictures"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that have ended, and one that is going on."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "small.yaml").write_text(STUDY)
    run_dirs = []
    for name, simulations in (("one", 10), ("two", 14)):
        study = load_study(folder / "small.yaml", [f"spec.budget.simulations={simulations}"])
        run_dirs.append(study.run(workers=2, run_dir=folder / name).run_dir)
    unfinished = folder / "three"
    unfinished.mkdir()
    for name in ("study.yaml", "journal.jsonl"):
        shutil.copy(run_dirs[0] / name, unfinished / name)
    return [*run_dirs, unfinished]


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str


def ask(app: Any, path: str, *, host: str = HOST, method: str = "GET") -> Answer:
    """One request, without a server."""
    started: list[tuple[str, list[tuple[str, str]]]] = []
    environ = {
        "REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host, "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8080", "wsgi.url_scheme": "http", "wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO(),
        "QUERY_STRING": "", "SCRIPT_NAME": "",
    }  # fmt: skip
    parts = app(environ, lambda status, headers, *_: started.append((status, headers)))
    body = b"".join(parts)
    if hasattr(parts, "close"):  # as a server does
        parts.close()
    return Answer(int(started[0][0][:3]), dict(started[0][1]), body.decode())


@pytest.fixture
def app(runs: list[Path]) -> Any:
    pytest.importorskip("optuna_dashboard", reason="the extra `dashboard` is not installed: it was NOT tested")
    from hisearch.api.dashboard import Dashboard

    return Dashboard(runs, {HOST})


def test_rows_are_of_the_percentiles_that_the_slos_state() -> None:
    assert shown_metrics(["ttft_p95_s", "ttft_p50_s", "itl_p90_s"])[3:6] == ["ttft_p50_s", "ttft_p95_s", "tpot_p99_s"]
    assert may_show("e2e_p97.5_s")
    assert not may_show("usd_per_million_tokens")


def test_the_first_page_shows_every_run(app: Any) -> None:
    page = ask(app, "/")
    assert page.status == 200
    for text in ("one", "two", "three", "/runs/0/report.html", "/compare/0/1", "of at most 10 simulations"):
        assert text in page.text
    assert "/compare/0/2" not in page.text
    assert 'http-equiv="refresh" content="5"' in page.text
    assert "Cost per hour" in page.text
    assert "<script" not in page.text


def test_reports_and_comparisons_are_served(app: Any, runs: list[Path]) -> None:
    assert ask(app, "/runs/0/report.html").text == (runs[0] / "report.html").read_text(encoding="utf-8")
    comparison = ask(app, "/compare/0/1")
    assert comparison.status == 200
    assert "one (A) against two (B)" in comparison.text
    assert comparison.headers["X-Frame-Options"] == "DENY"


def test_a_run_that_goes_on_has_a_report_so_far(app: Any, runs: list[Path]) -> None:
    assert '<a href="/runs/2/report.html">Report so far</a>' in ask(app, "/").text
    following, held = ask(app, "/runs/2/report.html"), ask(app, "/runs/2/so-far.html")
    assert (following.status, held.status) == (200, 200)
    assert 'http-equiv="refresh" content="30"' in following.text
    assert 'http-equiv="refresh"' not in held.text
    for page, other in ((following, "so-far.html"), (held, "report.html")):
        assert "So far: " in page.text
        assert f'<a href="{other}">' in page.text
    assert sorted(path.name for path in runs[2].iterdir()) == ["journal.jsonl", "study.yaml"]


def test_optuna_dashboard_knows_the_studies_of_all_runs(app: Any) -> None:
    assert ask(app, "/dashboard").status == 200
    names = {study["study_name"] for study in json.loads(ask(app, "/api/studies").text)["study_summaries"]}
    assert {"1 one: small", "2 two: small"} <= names
    assert not any(name.startswith("3") for name in names)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/runs/0/so-far.html", 404),
        ("/runs/9/report.html", 404),
        ("/runs/-1/report.html", 404),
        ("/runs/0/../../study.yaml", 404),
        ("/runs/0/study.db", 404),
        ("/compare/0/2", 404),
        ("/compare/0/x", 404),
        ("/elsewhere", 404),
    ],
)
def test_what_is_not_there(app: Any, path: str, status: int) -> None:
    answer = ask(app, path)
    assert answer.status == status
    assert "cannot be shown" in answer.text
    assert "All runs" in answer.text


def test_only_looking_is_allowed_and_only_by_its_own_name(app: Any) -> None:
    for path in ("/", "/api/studies"):
        assert ask(app, path, method="POST").status == 405
        assert ask(app, path, host="evil.example:8080").status == 403
    assert ask(app, "/api/studies/0", method="DELETE").status == 405


def test_it_follows_a_run_and_leaves_it_as_it_is(runs: list[Path], tmp_path: Path) -> None:
    from hisearch.search.records.run_studies import RunStudies

    folder = tmp_path / "run"
    folder.mkdir()
    studies = RunStudies([folder / "study.db"])
    assert studies.storage.get_all_studies() == []
    for source in runs[:2]:  # the second has more trials, as a run that went on
        shutil.copy(source / "study.db", folder / "study.db")
        before = (folder / "study.db").read_bytes()
        studies._looked_at = float("-inf")
        studies.refresh()
        assert (folder / "study.db").read_bytes() == before
        counted = sum(studies.storage.get_n_trials(study._study_id) for study in studies.storage.get_all_studies())
        facts = json.loads((source / "provenance.json").read_text(encoding="utf-8"))
        assert counted == facts["budget"]["simulations_used"]


def test_a_run_that_goes_on_is_shown_with_the_cheapest_that_it_has_found(runs: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="the extra `dashboard` is not installed: it was NOT tested")
    from hisearch.api.dashboard import Dashboard

    unfinished = tmp_path / "four"
    unfinished.mkdir()
    for name in ("study.yaml", "journal.jsonl", "study.db"):
        shutil.copy(runs[1] / name, unfinished / name)
    trials = pd.read_parquet(runs[1] / "trials.parquet")
    full_trials = trials[trials["feasible"] & (trials["slice_fraction"] == 1.0) & (trials["load"] == 1.0)]
    for folders in ([unfinished], [runs[0], unfinished]):
        state = Dashboard(folders, {HOST}).states()[-1]
        assert not state.ended
        assert state.feasible
        assert state.metrics["usd_per_hour"] == full_trials["usd_per_hour"].min()
    page = ask(Dashboard([unfinished], {HOST}), "/")
    assert "Cheapest so far that meets the SLO" in page.text


def test_the_extra_is_named_where_it_is_missing(
    hisearch: Hisearch, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "optuna_dashboard":
            raise ModuleNotFoundError("No module named 'optuna_dashboard'", name=name)
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    ran = hisearch("dashboard", runs[0], "--port", "0")
    assert ran.code == 1
    assert "pip install 'hisearch[dashboard]'" in ran.err


def test_no_run_no_dashboard(hisearch: Hisearch, tmp_path: Path) -> None:
    ran = hisearch("dashboard", tmp_path)
    assert ran.code == 1
    assert "not a run folder" in ran.err
    assert hisearch("dashboard").code == 2


@pytest.fixture
def address(runs: list[Path]) -> Iterator[str]:
    pytest.importorskip("optuna_dashboard", reason="the extra `dashboard` is not installed: it was NOT tested")
    from hisearch.api.dashboard import serve

    server = serve(runs, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.browser
@pytest.mark.skipif(
    chromium.PROGRAM is None, reason="no Chromium on PATH: the dashboard was NOT looked at by a browser"
)
def test_a_browser_shows_runs_comparison_and_trials(address: str, tmp_path: Path) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with chromium.Browser(tmp_path) as browser:
        browser.open(f"{address}/", "document.readyState === 'complete' && !!document.querySelector('article')")
        assert browser.run("document.querySelectorAll('article').length") == 3
        browser.picture(PICTURES / "dashboard-desktop.png")
        browser.open(
            f"{address}/compare/0/1", "document.readyState === 'complete' && !!document.querySelector('.lead')"
        )
        browser.picture(PICTURES / "comparison-desktop.png")
        assert browser.problems == []
        browser.open(f"{address}/dashboard", "document.body.innerText.includes('2 two: small')")
        browser.picture(PICTURES / "optuna-dashboard.png", whole=False)
        assert browser.problems == []
        assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests)
