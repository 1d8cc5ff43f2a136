"""Trials added in bulk are the rows that Optuna writes one by one."""

import math
import re
import sqlite3
from pathlib import Path

import optuna
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import IntegrityError

import hisearch
from hisearch.search.records.bulk_trials import add_finished

DISTRIBUTIONS: dict[str, BaseDistribution] = {
    "router": CategoricalDistribution(("random", "cache_aware")),
    "tier_1_gib": CategoricalDistribution((0.0, 64.0)),
    "replicas": IntDistribution(1, 64),
    "memory_fraction": FloatDistribution(0.5, 0.95),
}
PARAMETERS = st.fixed_dictionaries(
    {},
    optional={
        "router": st.sampled_from(["random", "cache_aware"]),
        "tier_1_gib": st.sampled_from([0.0, 64.0]),
        "replicas": st.integers(1, 64),
        "memory_fraction": st.floats(0.5, 0.95),
    },
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=4,
)
ATTRIBUTES = st.dictionaries(st.sampled_from(["stage", "deployment", "metrics"]), JSON)


@st.composite
def finished(draw: st.DrawFn) -> FrozenTrial:
    params = draw(PARAMETERS)
    distributions = {name: DISTRIBUTIONS[name] for name in params}
    attributes = draw(ATTRIBUTES)
    if draw(st.booleans()):
        return optuna.trial.create_trial(
            state=TrialState.FAIL, params=params, distributions=distributions, user_attrs=attributes
        )
    return optuna.trial.create_trial(
        values=[draw(st.floats(allow_nan=False)), draw(st.floats(-1e9, 1e9))],
        params=params,
        distributions=distributions,
        user_attrs=attributes,
        constraints=draw(st.dictionaries(st.sampled_from(["ttft_p99", "tpot_p99"]), st.floats(-1e9, 1e9))),
    )


def study_at(path: Path) -> optuna.Study:
    path.unlink(missing_ok=True)
    storage = RDBStorage(f"sqlite:///{path}")
    return optuna.create_study(storage=storage, study_name="s", directions=["minimize", "maximize"])


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in tables}


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(finished(), max_size=6), st.integers(0, 6))
def test_the_rows_are_those_of_optuna(tmp_path: Path, trials: list[FrozenTrial], cut: int) -> None:
    theirs, ours = study_at(tmp_path / "theirs.db"), study_at(tmp_path / "ours.db")
    theirs.add_trials(trials)
    storage = ours._storage
    backend = getattr(storage, "_backend", storage)
    assert isinstance(backend, RDBStorage)
    add_finished(backend, ours.study_name, 0, trials[:cut])
    add_finished(backend, ours.study_name, len(trials[:cut]), trials[cut:])
    assert rows(tmp_path / "ours.db") == rows(tmp_path / "theirs.db")
    assert [t.params for t in ours.trials] == [t.params for t in trials]


def test_all_or_none(tmp_path: Path) -> None:
    study = study_at(tmp_path / "s.db")
    backend = getattr(study._storage, "_backend", study._storage)
    good = optuna.trial.create_trial(values=[1.0, math.inf])
    bad = optuna.trial.create_trial(values=[1.0, 2.0])
    bad.state = None  # type: ignore[assignment]
    with pytest.raises(IntegrityError):
        add_finished(backend, study.study_name, 0, [good, bad])
    assert study.trials == []


def test_no_other_module_uses_what_optuna_does_not_publish() -> None:
    root = Path(hisearch.__file__).parent
    private = re.compile(r"optuna[\w.]*\._\w|\._study_id|\._trial_id")
    users = {
        path.name for path in root.rglob("*.py") if "optuna" in (text := path.read_text()) and private.search(text)
    }
    assert users == {"bulk_trials.py"}
