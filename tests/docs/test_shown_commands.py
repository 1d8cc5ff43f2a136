"""Every command that README and pages show runs, page by page, in an empty folder.

Blocks marked ``sh`` run as they stand (``test_runnable``). The others name files of the reader's own, which are made
here (``given``), and searches among them get a small budget. What cannot run here is named below with the test that
runs it, or the reason why none does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Hisearch, hisearch
from tests.docs.given import SIMULATIONS, provide
from tests.docs.pages import PAGES, ROOT, Snippet, blocks, commands, programs

__all__ = ["hisearch"]

#: What keeps the steps after a search short.
FEW_DRAWS = (
    "spec.confidence.draws=8",
    "spec.confidence.fresh_draws=8",
    "spec.confidence.what_if=8",
    "spec.confidence.search=40",
    "spec.confidence.seconds=36000",
)
#: What keeps a verb short, where the page's own words do not.
SHORT = {
    "size": ("--set", f"spec.budget.simulations={SIMULATIONS}", "--set", "spec.confidence.draws=0", "-q"),
    "run": (
        *("--set", f"spec.budget.simulations={SIMULATIONS}", "--set", "spec.workload.limit=300"),
        *("--set", "spec.budget.seconds=36000"),
        *(word for setting in FEW_DRAWS for word in ("--set", setting)),
        "-q",
    ),
    "simulate": ("--limit", "200", "-q"),
    "compare": ("--limit", "200", "-q"),
    "verify": ("-q",),
}
#: Likewise of a study: searches of a few simulations end on routers that sglang-router's command line lacks.
#: Of three shapes the first eight simulations meet nothing.
SHORT_STUDY = {
    "one-pool-or-apart": (
        "--set", "spec.space=exportable-pools.yaml", "--set", f"spec.budget.simulations={2 * SIMULATIONS}",
    ),
}  # fmt: skip
#: A recommendation, a measurement within the stated error; one that breaks the recommendation's SLO, one beyond the
#: error, nothing that meets the SLO.
EXPECTED = {0, 97, 98, 99}
#: Words of a command that is not run here -> why.
ELSEWHERE = {
    "dashboard": "serves until it is interrupted: tests/api/test_dashboard.py",
    "--scheduler": "needs a cluster: tests/cli/test_distributed.py starts one",
    "--storage": "needs a database: tests/cli/test_postgresql.py starts one",
    "runs/society": "its populations cannot be cut short: tests/search/test_objectives.py",
    "chat-and-batch": "searches two models: tests/api/test_fleet_study.py",
    "http://10.0.0.7:8000": "needs a server: tests/serving/test_page.py runs the page",
    "observed": "needs an observation: tests/serving/test_page.py",
    "observed/deployment.yaml": "needs an observation: tests/serving/test_page.py",
    "mlperf": "searches for each submission: tests/api/test_mlperf.py",
}
#: Pages whose commands take more than five seconds together.
SLOW = {
    "agents.md", "cache-tiers.md", "capacity.md", "choose-a-gpu.md", "cli.md", "confidence.md", "disaggregate.md",
    "fp8.md", "growth.md", "own-model.md", "own-trace.md", "prices.md", "report.md", "runs.md", "size.md",
    "speculate.md", "start.md", "traces.md", "verify.md", "verify-own-server.md",
}  # fmt: skip
#: Other programs -> why their lines are not run.
OTHERS = {
    "pip": "installs from a package index",
    "python": "runs in an environment that has an engine: tests/record/test_vllm.py",
    ".engines/vllm-0.33.0/bin/python": "is such an environment's: tests/record/test_vllm.py",
    "git": "clones from an address that pages do not know",
    "cd": "belongs to the clone",
    "cp": "copies a file to a server",
    "vllm": "serves a model: tests/serving, tests/observe; results: tests/traces/test_benchmarks.py",
    "make": "sets up an environment: targets are checked below",
    "dask": "serves until it is interrupted: tests/cli/test_distributed.py",
    "optuna-dashboard": "serves until it is interrupted: tests/api/test_dashboard.py",
    "deploy/benchmark/guidellm.sh": "needs a deployment: tests/export/test_export_scripts.py",
}


def shown(page: Path) -> list[tuple[Snippet, list[str]]]:
    """Commands of a page but for those of blocks that run as they stand."""
    unmarked = {block.line for block in blocks(page, "sh") if not block.remark}
    return [(place, arguments) for place, arguments in commands(page) if place.line not in unmarked]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of README's study, made short."""
    from hisearch.api.studies.study import load_study

    folder = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        provide(["run", "my-study.yaml", "--trace", "my-trace.jsonl.gz"], lambda _: None)
        result = load_study("my-study.yaml", [f"spec.budget.simulations={SIMULATIONS}", *FEW_DRAWS]).run(
            run_dir=folder / "run", workers=2
        )
    assert result.recommendation is not None
    return result.run_dir


def by_page() -> list[Any]:
    """Pages with commands; those that take more than a few seconds are marked."""
    return [
        pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else (), id=page.name)
        for page in PAGES
        if shown(page)
    ]


@pytest.mark.parametrize("page", by_page())
def test_the_commands_of_a_page_run(
    page: Path, hisearch: Hisearch, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("studies", "slos"):
        Path(name).symlink_to(ROOT / name)
    for place, arguments in shown(page):
        if any(word in ELSEWHERE for word in arguments):
            continue
        short = _short(arguments)
        provide([*arguments, *short], lambda folder: shutil.copytree(finished_run, folder))
        words = [expanded for word in arguments for expanded in _expanded(word)]
        ran = hisearch(*words, *short)
        assert ran.code in EXPECTED, f"{place}: hisearch {' '.join(arguments)}: {ran.err}"


def _expanded(word: str) -> list[str]:
    """As a shell would."""
    return sorted(str(path) for path in Path().glob(word)) if "*" in word else [word]


def _short(arguments: list[str]) -> tuple[str, ...]:
    if any(word.startswith("spec.budget.") for word in arguments) and "--resume" in arguments:
        return ("--set", f"spec.budget.simulations={2 * SIMULATIONS}", "-q")
    if "--resume" in arguments or (arguments[0] == "compare" and "--trace" not in arguments):
        return ("-q",)
    lighter = ("--set", "spec.workload.load=0.2")
    named = any(word.startswith("spec.workload.load=") for word in arguments)
    extra = [word for name in arguments for word in SHORT_STUDY.get(name, ())]
    return (*SHORT.get(arguments[0], ()), *extra, *(lighter if arguments[0] == "run" and not named else ()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_other_program_is_known(page: Path) -> None:
    unknown = [f"{place}: {name}" for place, name in programs(page) if name not in {"hisearch", *OTHERS}]
    assert unknown == []


def test_every_how_to_shows_commands() -> None:
    pages = set((ROOT / "docs" / "how-to").glob("*.md")) - {ROOT / "docs" / "how-to" / "index.md"}
    assert len(pages) >= 18
    assert [page.name for page in sorted(pages) if not shown(page)] == []


def test_what_is_left_out_is_there() -> None:
    """No exception outlives what it was made for."""
    words = {word for page in PAGES for _, arguments in commands(page) for word in arguments}
    assert set(ELSEWHERE) <= words
    assert set(OTHERS) <= {name for page in PAGES for _, name in programs(page)}
