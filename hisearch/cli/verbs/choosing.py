"""The studies that ``hisearch run`` offers where none is named."""

from __future__ import annotations

import sys
import textwrap

import typer

#: Offered first: small, and explained in the tutorial.
_FIRST = "quickstart"

#: Columns of a description.
_WIDTH = 90

_USAGE = "name a study or an SLO, or a folder to --resume; without a study file ask with: hisearch size"


def choose_study() -> str:
    """The study that the person at the terminal picks from a numbered list.

    Raises:
        typer.BadParameter: there is no terminal to ask at; the list has been printed.
        typer.Abort: no answer.
    """
    studies = _studies()
    _show(studies)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise typer.BadParameter(_USAGE, param_hint="STUDY_OR_SLO")
    while True:
        answer = str(typer.prompt("Which one (number or name)", default="1", err=True)).strip()
        if answer in studies:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(studies):
            return list(studies)[int(answer) - 1]
        typer.echo(f"expected a number from 1 to {len(studies)}, or a name of the list, got '{answer}'", err=True)


def _studies() -> dict[str, str]:
    """Studies of the catalogue with their descriptions; the problem of one that cannot be read."""
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.specs.errors import SpecError

    catalogue = Catalogue()
    studies: dict[str, str] = {}
    for kind in ("Study", "FleetStudy"):
        for name in catalogue.names(kind):
            try:
                studies.setdefault(name, " ".join(catalogue.get(kind, name).description.split()))
            except SpecError as error:
                studies.setdefault(name, str(error.problems[0]))
    return dict(sorted(studies.items(), key=lambda item: item[0] != _FIRST))


def _show(studies: dict[str, str]) -> None:
    longest = max(map(len, studies), default=0)
    typer.echo("Studies:", err=True)
    for number, (name, description) in enumerate(studies.items(), start=1):
        line = textwrap.shorten(description, _WIDTH, placeholder=" …") if description else ""
        typer.echo(f"{number:4}  {name:<{longest}}  {line}".rstrip(), err=True)
