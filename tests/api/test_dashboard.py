"""The dashboard: what it serves, what it refuses, and that it follows a run."""

from __future__ import annotations

import builtins
import fcntl
import io
import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hisearch.api.dashboard import Dashboard, hosts_of, serve, url_of
from hisearch.api.run_lock import is_running
from hisearch.api.run_state import RunReader
from hisearch.api.studies.reporting import input_so_far
from hisearch.api.studies.study import load_study
from hisearch.report.pages.dashboard_page import may_show, shown_metrics
from hisearch.score.quantities import usd
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
    return Dashboard(runs, {HOST})


@pytest.fixture
def without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra is not installed."""
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "optuna_dashboard":
            raise ModuleNotFoundError("No module named 'optuna_dashboard'", name=name)
        return imported(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)


def journal_only(source: Path, folder: Path, lines: int | None = None) -> Path:
    """A run that has not ended, with the first ``lines`` of another's journal."""
    folder.mkdir()
    shutil.copy(source / "study.yaml", folder / "study.yaml")
    journal = (source / "journal.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "journal.jsonl").write_text("".join(journal[:lines]), encoding="utf-8")
    return folder


def test_rows_are_of_the_percentiles_that_the_slos_state() -> None:
    assert shown_metrics(["ttft_p95_s", "ttft_p50_s", "itl_p90_s"])[3:6] == ["ttft_p50_s", "ttft_p95_s", "ttfo_p99_s"]
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
    pytest.importorskip("optuna_dashboard", reason="the extra `dashboard` is not installed: it was NOT tested")
    page = ask(app, "/dashboard")
    assert page.status == 200
    assert "data-testid=DeleteIcon" in page.text, "what cannot work is hidden"
    assert int(page.headers["Content-Length"]) == len(page.text.encode())
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
    unfinished = journal_only(runs[1], tmp_path / "four")
    trials = pd.read_parquet(runs[1] / "trials.parquet")
    full_trials = trials[trials["feasible"] & (trials["slice_fraction"] == 1.0) & (trials["load"] == 1.0)]
    state = Dashboard([runs[0], unfinished], {HOST}).states()[-1]
    assert not state.ended
    assert state.feasible
    assert state.metrics["usd_per_hour"] == full_trials["usd_per_hour"].min()
    page = ask(Dashboard([unfinished], {HOST}), "/")
    assert "Cheapest so far that meets the SLO" in page.text


def test_digests_and_lists_of_a_study_are_short(runs: list[Path]) -> None:
    asked = RunReader().state(runs[0]).question
    digests = [value for key, value in asked.items() if key.startswith("pins.")]
    assert digests
    assert all(re.fullmatch("[0-9a-f]{12}", digest) for digest in digests)
    assert asked["objectives"] == "ttft_p99, goodput, usd_per_hour"


def test_progress_is_drawn_as_curves(runs: list[Path], tmp_path: Path) -> None:
    folder = journal_only(runs[1], tmp_path / "five")
    (price, volume) = RunReader().state(folder).curves
    trials = input_so_far(folder).trials
    best = min(trial.metrics["usd_per_hour"] for trial in trials if trial.meets_slo)
    assert price.last == f"{usd(best)}/h"
    assert volume.last == "100 %"
    page = ask(Dashboard([folder], {HOST}), "/").text
    assert page.count('<svg class="curve"') == 2
    assert price.summary in page
    reader = RunReader()
    before = reader.state(journal_only(runs[1], tmp_path / "six", 4))
    (tmp_path / "six" / "journal.jsonl").write_bytes((runs[1] / "journal.jsonl").read_bytes())
    assert reader.state(tmp_path / "six").simulations > before.simulations, "a journal that grew is read again"


def test_running_is_told_from_interrupted_by_the_lock(runs: list[Path], tmp_path: Path) -> None:
    folder = journal_only(runs[0], tmp_path / "run")
    assert is_running(folder) is None, "an earlier version took no lock"
    assert RunReader().state(folder).status == "unknown"
    lock = folder / "run.lock"
    lock.touch()
    assert is_running(folder) is False
    app = Dashboard([folder], {HOST})
    page = ask(app, "/").text
    assert "Interrupted" in page
    assert 'http-equiv="refresh"' not in page
    assert "It was interrupted" in ask(app, "/runs/0/so-far.html").text
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_running(folder) is True
        page = ask(app, "/").text
        assert "● Running" in page
        assert 'http-equiv="refresh"' in page
        assert "It is running." in ask(app, "/runs/0/so-far.html").text
    assert is_running(folder) is False
    assert is_running(runs[0]) in (None, False)


def test_all_trials_are_reached_with_a_filter(app: Any, runs: list[Path]) -> None:
    page = ask(app, "/").text
    assert '<a href="/runs/0/report.html#trials">All trials</a>' in page
    assert '<a href="/runs/0/report.html#trials?feasible=1">' in page
    for name, value, count in RunReader().state(runs[0]).filters:
        assert f'/runs/0/report.html#trials?{name}={value}">{value}</a> ({count})' in page


def test_what_differs_between_runs_is_named(runs: list[Path]) -> None:
    page = ask(Dashboard(runs[:2], {HOST}), "/").text
    row = page[page.index("budget.simulations") :]
    assert row.startswith("budget.simulations</th><td>10</td><td>14</td>")
    assert "In which keys the studies differ" not in ask(Dashboard(runs[:1], {HOST}), "/").text


def test_without_the_extra_only_its_link_is_missing(runs: list[Path], without_optuna: None) -> None:
    app = Dashboard(runs, {HOST})
    page = ask(app, "/")
    assert page.status == 200
    assert 'href="/dashboard"' not in page.text
    assert ask(app, "/runs/0/report.html").status == 200
    refused = ask(app, "/dashboard")
    assert refused.status == 404
    assert "hisearch[dashboard]" in refused.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "0.0.0.0"])
def test_it_answers_to_this_machine_s_own_names(host: str) -> None:
    for name in ("localhost", "127.0.0.1", "[::1]"):
        assert f"{name}:8080" in hosts_of(host, 8080)
        assert name not in hosts_of(host, 8080)
        assert {name, f"{name}:80"} <= hosts_of(host, 80), "browsers leave out port 80"
    assert "evil.example" not in hosts_of(host, 80)
    assert url_of("::1", 8080) == "http://[::1]:8080/"
    assert url_of("127.0.0.1", 80) == "http://127.0.0.1/"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_port_80_needs_no_port_in_the_header(runs: list[Path], host: str) -> None:
    app = Dashboard(runs, hosts_of("127.0.0.1", 80))
    assert ask(app, "/", host=host).status == 200
    assert ask(app, "/", host=host.upper()).status == 200
    assert ask(app, "/", host="evil.example").status == 403


def test_no_run_no_dashboard(hisearch: Hisearch, tmp_path: Path) -> None:
    ran = hisearch("dashboard", tmp_path)
    assert ran.code == 1
    assert "not a run folder" in ran.err
    assert hisearch("dashboard").code == 2


@pytest.fixture
def address(runs: list[Path]) -> Iterator[str]:
    pytest.importorskip("optuna_dashboard", reason="the extra `dashboard` is not installed: it was NOT tested")
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
        browser.wait("document.querySelectorAll('[data-testid=DeleteIcon]').length > 0")
        seen = "[...document.querySelectorAll('button')].filter(button => button.offsetWidth)"
        labels = browser.run(f"{seen}.map(button => button.ariaLabel || button.innerText)")
        assert not {"delete study", "rename study", "CREATE"} & set(labels), "buttons that could not work"
        browser.picture(PICTURES / "optuna-dashboard.png", whole=False)
        assert browser.problems == []
        assert all(url.startswith((address, "data:", "blob:")) for url in browser.requests)
