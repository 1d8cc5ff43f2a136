"""Which single setting would change the answer: trials that differ from the recommendation in one setting only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hisearch.base.policies import ROUTERS
from hisearch.search.model.deployments import parameters_of, stores
from hisearch.search.model.trial import Trial

#: Settings that belong to another one: parameters of every router policy.
_BELONGS_TO = {parameter.name: "router" for policy in ROUTERS.values() for parameter in policy.parameters}

_TIERS = "cache tiers"


@dataclass(frozen=True)
class Setting:
    """Effect of one setting.

    name: of the setting. ours: the recommendation's value; instead: the trial's, as text.
    """

    name: str
    ours: str
    instead: str
    trial: Trial


def single_changes(trials: Sequence[Trial], best: Trial) -> list[Setting]:
    """Trials of the complete trace that differ from ``best`` in one setting, those with the worst margin first.

    A router with its parameters is one setting; so are the cache tiers with all KV movement between them. Of a number
    only the nearest smaller and the nearest larger value count: what a leap does says little about the setting. Trials
    with differences outside the searched dimensions are left out.
    """
    ours = parameters_of(best.deployment)
    settings: list[Setting] = []
    steps: dict[tuple[str, bool], tuple[float, Setting]] = {}
    for trial in trials:
        if not trial.comparable or trial.number == best.number:
            continue
        theirs = parameters_of(trial.deployment)
        changed = [key for key in dict.fromkeys((*ours, *theirs)) if ours.get(key) != theirs.get(key)]
        names = {_group(key) for key in changed}
        if len(names) == 1 and len(trial.deployment.pools) == len(best.deployment.pools):
            name = changed[0] if len(changed) == 1 else names.pop()
            describe = _words(ours, changed, name), _words(theirs, changed, name)
            if name == _TIERS and stores(best.deployment.pool) != stores(trial.deployment.pool):
                shared = [key for key in changed if key in ours and key in theirs and not _of_a_store(key)]
                describe = _tier_words(best, ours, shared), _tier_words(trial, theirs, shared)
            setting, step = Setting(name, *describe, trial), _step(ours.get(name), theirs.get(name))
            if step is None:
                settings.append(setting)
            elif (name, step > 0) not in steps or abs(step) < abs(steps[name, step > 0][0]):
                steps[name, step > 0] = step, setting
    settings += [setting for _, setting in steps.values()]
    return sorted(settings, key=lambda setting: (setting.trial.worst_margin, setting.trial.number))


def _step(ours: object, instead: object) -> float | None:
    """How far a number is from another; None where a value is no number."""
    numbers = [value for value in (ours, instead) if isinstance(value, int | float) and not isinstance(value, bool)]
    return float(numbers[1] - numbers[0]) if len(numbers) == 2 else None


def _group(key: str) -> str:
    if key.startswith(("tier", "kv_connector", "write_policy", "prefetch", "hierarchy")):
        return _TIERS
    return _BELONGS_TO.get(key, key)


def _words(parameters: Mapping[str, Any], keys: Sequence[str], name: str) -> str:
    """The named value; for a group without a key of that name, all differing values."""
    if name in parameters:
        return f"{parameters[name]}"
    return ", ".join(_values(parameters, keys)) or "none"


def _tier_words(trial: Trial, parameters: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The trial's stores, ``256 GiB ddr5 per worker, 875 GiB nvme-gen4 per node``, and its values of ``keys``."""
    return ", ".join([*(stores(trial.deployment.pool) or ["none"]), *_values(parameters, keys)])


def _values(parameters: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return [f"{key} {parameters[key]}" for key in keys if key in parameters]


def _of_a_store(key: str) -> bool:
    """True for keys that ``stores`` already covers."""
    return key.startswith("tier_") and key.endswith(("_gib", "_medium", "_scope"))
