"""What is taken from Optuna that it does not publish: the tables to which finished trials are added at once.

``optuna.Study.add_trials`` queries the database several times for each parameter of each trial, which takes as long as
many a simulation. Here one transaction inserts all rows of a kind together, about forty times as fast. The rows are the
same (``tests/search/test_bulk_trials.py`` compares them), in the tables of Optuna's own models. These models are not
public, so Optuna's version is kept below the next major one. No other module uses what Optuna does not publish.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import optuna
    from optuna.storages import BaseStorage, RDBStorage
    from optuna.study._frozen import FrozenStudy

    #: A study as a storage lists it.
    StoredStudy = FrozenStudy
else:
    StoredStudy = Any


def study_ids(storage: BaseStorage) -> dict[str, int]:
    """Optuna's keys of all studies, by their names."""
    return {study.study_name: study._study_id for study in storage.get_all_studies()}


def add_finished(storage: RDBStorage, study: str, first: int, trials: Sequence[optuna.trial.FrozenTrial]) -> None:
    """Add trials to a study: all of them, or none on failure.

    Args:
        storage: storage of the study.
        study: its name. Nobody else may add trials to it meanwhile.
        first: number of trials already in the study, and so the number of the first new one.
        trials: finished trials, as ``optuna.trial.create_trial`` makes and checks them, without intermediate values.

    Raises:
        SQLAlchemyError: the database cannot be written.
    """
    from optuna.storages._rdb import models
    from sqlalchemy import insert
    from sqlalchemy.orm import Session

    study_id = storage.get_study_id_from_name(study)
    with Session(storage.engine) as session, session.begin():
        heads = [
            models.TrialModel(
                study_id=study_id,
                number=first + place,
                state=trial.state,
                datetime_start=trial.datetime_start,
                datetime_complete=trial.datetime_complete,
            )
            for place, trial in enumerate(trials)
        ]
        session.add_all(heads)
        session.flush()
        rows_by_model: dict[Any, list[dict[str, Any]]] = {}
        for head, trial in zip(heads, trials, strict=True):
            for model, rows in _rows(trial):
                rows_by_model.setdefault(model, []).extend({"trial_id": head.trial_id, **row} for row in rows)
        for model, rows in rows_by_model.items():
            if rows:
                session.execute(insert(model), rows)


def _rows(trial: optuna.trial.FrozenTrial) -> list[tuple[Any, list[dict[str, Any]]]]:
    """Rows of a trial, by Optuna's table model."""
    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models

    params = []
    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        text = distribution_to_json(distribution)
        stored = distribution.to_internal_repr(value)
        params.append({"param_name": name, "param_value": stored, "distribution_json": text})
    values = []
    for objective, figure in enumerate(trial.values or ()):
        value, kind = models.TrialValueModel.value_to_stored_repr(figure)
        values.append({"objective": objective, "value": value, "value_type": kind})
    return [
        (models.TrialParamModel, params),
        (models.TrialValueModel, values),
        (models.TrialUserAttributeModel, _attributes(trial.user_attrs)),
        (models.TrialSystemAttributeModel, _attributes(trial.system_attrs)),
    ]


def _attributes(attributes: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in attributes.items()]
