"""Trials in a PostgreSQL database, of a real server."""

import random
import shutil
from pathlib import Path

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import RDBStorage

from hisearch.search.records.bulk_trials import add_finished
from tests.cli.conftest import Hisearch
from tests.cli.test_killed import findings, kill_at_random
from tests.postgresql import PASSWORD, Server, postgresql

pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def server() -> Server:
    with postgresql() as running:
        yield running


def stored(server: Server) -> dict[str, list[float]]:
    """Study -> prices of its trials, in order."""
    import optuna

    url = server.url.replace("postgresql://", "postgresql+psycopg://")
    storage = optuna.storages.RDBStorage(url)
    try:
        return {
            study.study_name: [
                trial.user_attrs["metrics"]["usd_per_hour"] for trial in storage.get_all_trials(study._study_id)
            ]
            for study in storage.get_all_studies()
        }
    finally:
        storage.engine.dispose()


def texts(folder: Path) -> str:
    """All that a run has written, whatever its format."""
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.slow
def test_trials_go_into_the_database_and_no_password_anywhere(
    hisearch: Hisearch, workdir: Path, server: Server
) -> None:
    options = ("--set", "spec.budget.simulations=5")
    first = hisearch("run", "small.yaml", "--out", "r", "--json", "--storage", server.url, *options)
    assert first.code == 0
    (name,) = [name for name in stored(server) if name.startswith("small r ")]
    assert len(stored(server)[name]) == 5
    assert not (workdir / "r" / "study.db").exists()
    assert server.shown in (workdir / "r" / "study.yaml").read_text()
    assert server.shown in (workdir / "r" / "storage.json").read_text()
    assert PASSWORD not in texts(workdir / "r") + first.out + first.err
    # Another run of the same study in a folder of the same name is another one in the database.
    (workdir / "elsewhere").mkdir()
    assert hisearch("run", "small.yaml", "--out", "elsewhere/r", "-q", "--storage", server.url, *options).code == 0
    assert len([name for name in stored(server) if name.startswith("small r ")]) == 2


@pytest.mark.slow
def test_a_run_that_is_killed_resumes_from_its_address_and_the_password_of_the_environment(
    hisearch: Hisearch, workdir: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    before = stored(server)
    assert hisearch("run", "small.yaml", "--out", "whole", "-q", "--set", f"spec.storage={server.shown}").code == 0
    document = (workdir / "small.yaml").read_text()
    (workdir / "small.yaml").write_text(document + f"  storage: {server.shown}\n")
    kill_at_random(workdir, random.Random(3), 3, "--workers", 2)
    assert hisearch("run", "--resume", "r", "-q").code == 0
    ours, theirs = findings(workdir / "r"), findings(workdir / "whole")
    ours.pop("study.yaml"), theirs.pop("study.yaml")  # only one of them names the applied setting
    assert ours == theirs
    by_study = stored(server)
    (killed,) = [name for name in by_study if name.startswith("small r ") and name not in before and "/" not in name]
    (undisturbed,) = [name for name in by_study if name.startswith("small whole ") and "/" not in name]
    assert len(by_study[undisturbed]) > 10
    assert by_study[killed] == by_study[undisturbed]


@pytest.mark.slow
def test_a_server_that_refuses_is_reported_without_the_password(
    hisearch: Hisearch, workdir: Path, server: Server
) -> None:
    wrong = server.url.replace(PASSWORD, "wr0ng-pa55")
    ran = hisearch("run", "small.yaml", "--out", "r", "--storage", wrong)
    assert ran.code == 1
    assert "password authentication failed" in ran.err
    assert "wr0ng-pa55" not in ran.err + ran.out + texts(workdir / "r")
    closed = hisearch("run", "small.yaml", "--out", "r2", "--storage", "postgresql://a:wr0ng-pa55@127.0.0.1:9/db")
    assert closed.code == 1
    assert "postgresql://a@127.0.0.1:9/db: " in closed.err
    assert "wr0ng-pa55" not in closed.err


@pytest.mark.slow
def test_a_run_goes_on_wherever_its_folder_is_brought_and_nowhere_else(
    hisearch: Hisearch, workdir: Path, server: Server
) -> None:
    options = ("-q", "--storage", server.url)
    few = ("--set", "spec.budget.simulations=4")
    assert hisearch("run", "small.yaml", "--out", "moved/r", *options, *few).code == 0
    before = stored(server)
    nothing = hisearch("run", "small.yaml", "--resume", "here/r", *options)
    assert nothing.code == 1
    assert "here/r: expected the folder of a run to go on with, found no journal.jsonl" in nothing.err
    assert not (workdir / "here").exists()
    assert stored(server) == before
    shutil.copytree(workdir / "moved" / "r", workdir / "here" / "r")
    again = hisearch("run", "--resume", "here/r", "--json", *options, "--set", "spec.budget.simulations=6")
    assert again.code == 0
    assert again.json["replayed"] >= 4
    after = stored(server)
    assert set(after) == set(before)  # the same studies, replaced
    (name,) = [name for name in after if name.startswith("small r ") and after[name] != before[name]]
    assert len(after[name]) == 6


@pytest.mark.slow
def test_trials_written_in_bulk_are_those_that_optuna_writes(server: Server) -> None:
    storage = RDBStorage(server.url.replace("postgresql://", "postgresql+psycopg://"))
    distributions: dict[str, BaseDistribution] = {
        "replicas": IntDistribution(1, 64),
        "router": CategoricalDistribution(("random", "cache_aware")),
    }
    trials = [
        optuna.trial.create_trial(
            values=[float(count), -1.0 / count],
            params={"replicas": count, "router": ("random", "cache_aware")[count % 2]},
            distributions=distributions,
            user_attrs={"number": count, "metrics": {"usd_per_hour": 2.5 * count}},
            constraints={"ttft_p99": 0.5 - count},
        )
        for count in range(1, 41)
    ]
    ours, theirs = (
        optuna.create_study(storage=storage, study_name=f"bulk {name}", directions=["minimize", "maximize"])
        for name in ("ours", "theirs")
    )
    theirs.add_trials(trials)
    add_finished(storage, ours.study_name, 0, trials[:25])
    add_finished(storage, ours.study_name, 25, trials[25:])
    written, expected = (
        [(t.number, t.state, t.values, t.params, t.distributions, t.user_attrs, t.system_attrs) for t in study.trials]
        for study in (ours, theirs)
    )
    storage.remove_session()
    storage.engine.dispose()
    assert written == expected
