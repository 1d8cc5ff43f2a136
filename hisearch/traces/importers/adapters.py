"""Which of the models that recorded calls ask for are LoRA adapters, which engines serve under names of their own.

vLLM serves an adapter as a model of its name (``--lora-modules NAME=PATH``); SGLang also as ``BASE:NAME``. Nothing in a
record tells a base model from an adapter: ``adapters`` of a trace file says which names are adapters.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from hisearch.specs.wording import listed
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.reading.rows import one_line

#: Names that a message lists, and characters of each.
_SHOWN, _CHARACTERS = 8, 100


def split_models(requested: Sequence[str], ranks: Mapping[str, int], path: Path) -> tuple[list[str], list[str]]:
    """Base model and adapter that each call asks for; "" for either that it does not name.

    Args:
        requested: the model that each call asks for, or "".
        ranks: names that are adapters.
        path: of the file, for errors.

    Raises:
        TraceError: no call asks for one of ``ranks``; or adapters are served without their base's name, and calls ask
            for several other models: whose adapters they are is not known.
    """
    pairs = [_split(name, ranks) for name in requested]
    check_asked_for([adapter for _, adapter in pairs], ranks, path, asked=requested)
    bases = {base for base, _ in pairs if base}
    without = {adapter for base, adapter in pairs if adapter and not base}
    if without and len(bases) > 1:
        message = (
            f"of which model {_listed(without)} is an adapter is not recorded: calls ask for {_listed(bases)} too. "
            "Give a file for each model"
        )
        raise TraceError.at(message, path=path, key="adapters")
    only = bases.pop() if len(bases) == 1 else ""
    return [base or only for base, _ in pairs], [adapter for _, adapter in pairs]


def check_asked_for(adapters: Collection[str], ranks: Mapping[str, int], path: Path, asked: Collection[str]) -> None:
    """Refuse names of ``ranks`` that none of ``adapters`` is; ``asked``: the names in the file.

    Raises:
        TraceError: at the key ``adapters``.
    """
    if unused := sorted(set(ranks) - set(adapters)):
        known = _listed(set(asked) - {""}) or "no name"
        raise TraceError.at(f"no call asks for {unused[0]!r}; calls ask for {known}", path=path, key="adapters")


def several_models(models: Collection[str]) -> str:
    """What to know of calls that ask for several models, none of which is said to be an adapter."""
    return (
        f"calls ask for {len(models)} models ({_listed(models)}), and the deployment must have all of them; which are "
        "LoRA adapters, --adapters NAME=RANK,… says"
    )


def _split(name: str, ranks: Mapping[str, int]) -> tuple[str, str]:
    if name in ranks:
        return "", name
    base, colon, adapter = name.rpartition(":")
    return (base, adapter) if colon and adapter in ranks else (name, "")


def _listed(names: Collection[str]) -> str:
    shown = [one_line(name[:_CHARACTERS]) for name in sorted(names)]
    more = [f"{len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return listed([*shown[:_SHOWN], *more])
