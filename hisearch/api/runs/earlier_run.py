"""Why a run cannot be resumed: how its study differs from the stored one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.runs.provenance import hisearch_version
from hisearch.api.runs.run_folder import PROVENANCE
from hisearch.specs.source import read_source, text_source
from hisearch.specs.wording import counted, listed

if TYPE_CHECKING:
    from hisearch.specs.documents.resolved import ResolvedStudy

#: Keys of a study that decide the outcome of its simulations; files that it names are under ``pins``.
_DECISIVE = ("model", "workload", "slo", "seed", "limits", "objectives", "pins")

#: Most further keys that are listed.
_OTHERS = 6

#: Hexadecimal digits of a digest that are shown.
_DIGITS = 12


def what_differs(folder: Path, resolved: ResolvedStudy) -> str:
    """The first key in which the study of the run in ``folder`` differs from ``resolved``, both values, and other keys.

    Where no key differs, the program does: another version, or changed kernels.

    Raises:
        SpecError: the study in ``folder`` cannot be read.
    """
    from hisearch.report.data.comparison import changes_between

    stored = read_source(folder / "study.yaml")
    current = text_source(resolved.to_yaml(), resolved.document.path)
    changes = changes_between(_decisive(stored.data["spec"]), _decisive(current.data["spec"]))
    if not changes:
        return _other_program(folder)
    first = changes[0]
    path = folder / "study.yaml"
    if first.key.startswith("pins."):
        named = first.key.removeprefix("pins.")
        text = f"{named} has the SHA-256 {_shown(first.a)} in {path}, and {_shown(first.b)} now"
    else:
        text = f"spec.{first.key} is {first.a or 'not set'} in {path}, and {first.b or 'not set'} now"
    # A changed key changes the pin of the file that it names: such pins are not listed.
    others = [f"spec.{change.key}" for change in changes[1:] if not change.key.startswith("pins.")]
    if first.key.startswith("pins."):
        others = [change.key.removeprefix("pins.") for change in changes[1:]]
    hidden = len(others) - _OTHERS
    shown = listed(others[:_OTHERS] + ([f"{counted(hidden, 'key')} more"] if hidden > 0 else []))
    return f"{text}; {shown} {'differs' if len(others) == 1 else 'differ'} too" if others else text


def _decisive(spec: dict[str, Any]) -> dict[str, Any]:
    kept = {key: spec[key] for key in _DECISIVE if key in spec}
    pins = {name: pin for name, pin in spec.get("pins", {}).items() if not name.startswith("SearchSpace/")}
    return kept | {"pins": pins}


def _shown(digest: str) -> str:
    return f"{digest[:_DIGITS]}…" if digest else "none (it is not used)"


def _other_program(folder: Path) -> str:
    path, now = folder / PROVENANCE, hisearch_version()
    then = json.loads(path.read_text(encoding="utf-8"))["versions"]["hisearch"] if path.is_file() else now
    if then != now:
        return f"the study is the same, but hisearch was {then}, and is {now} now"
    return "the study is the same, but hisearch's kernels were others, or what a file stands for was"
