"""``hisearch list`` and ``hisearch schema``: the catalogue, and the schema of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    from hisearch.specs.documents.catalogue import Catalogue


def list_(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="Study, SLO, SearchSpace, Workload, Model, …")
    ] = None,
    copy: Annotated[
        str | None, typer.Option("--copy", metavar="NAME", help="Copy this document into the folder, to be edited.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the catalogue.

    That is the working directory's documents (./studies, ./slos, ./profiles/…) and those that ship. The former come
    first: a copy takes the place of what ships.
    """
    from hisearch.cli import output
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.specs.documents.kinds import KINDS

    catalogue = Catalogue()
    if copy is not None:
        path = _copied(catalogue, "" if kind is None else known_kind(kind), copy)
        output.result(as_json, lambda: {"path": path}, lambda: output.say(f"{path}: edit it, it now comes first"))
        return
    if kind is None:
        names = {name: catalogue.names(name) for name in KINDS}
        listing = [(name, ", ".join(documents)) for name, documents in names.items()]
        output.result(as_json, lambda: names, lambda: output.table(("kind", "names"), listing))
        return
    chosen = known_kind(kind)
    rows = [{"name": name, **_entry(catalogue, chosen, name)} for name in catalogue.names(chosen)]
    listing = [(row["name"], row["problem"] or row["description"]) for row in rows]
    output.result(as_json, lambda: {chosen: rows}, lambda: output.table((chosen, "description"), listing))


def schema(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Study, SLO, SearchSpace, Workload, Model, …")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write to FILE instead of standard output.")
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of document."""
    from hisearch.specs.documents.kinds import json_schema

    text = json.dumps(json_schema(known_kind(kind)), indent=2) + "\n"
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def known_kind(name: str) -> str:
    """The kind of that name, in upper or lower case, one or many.

    Raises:
        typer.BadParameter: no such kind.
    """
    from hisearch.specs.documents.kinds import KINDS
    from hisearch.specs.wording import unknown

    by_name = {kind.lower(): kind for kind in KINDS}
    by_name |= {f"{kind.removesuffix('y')}ies" if kind.endswith("y") else f"{kind}s": by_name[kind] for kind in by_name}
    if name.lower() not in by_name:
        raise typer.BadParameter(f"no kind '{name}'{unknown(name, list(KINDS))}", param_hint="KIND")
    return by_name[name.lower()]


def _copied(catalogue: Catalogue, kind: str, name: str) -> str:
    """Path, from the working directory, of a new copy of a document.

    Raises:
        typer.BadParameter: no kind is given, or a file is there already.
        UnknownReferenceError: there is no such document.
    """
    from hisearch.specs.documents.kinds import FOLDERS
    from hisearch.specs.documents.question import USUAL

    if not kind:
        raise typer.BadParameter("of which kind? hisearch list KIND --copy NAME", param_hint="--copy")
    original = catalogue.locate(kind, USUAL.get(name, name) if kind == "Accelerator" else name)
    place = Path(FOLDERS[kind]) / original.name
    if place.exists():
        raise typer.BadParameter(f"{place} is there already: edit it", param_hint="--copy")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(original.read_bytes())
    return str(place)


def _entry(catalogue: Catalogue, kind: str, name: str) -> dict[str, str]:
    """A document's path and description, or the problem that makes it unusable."""
    from hisearch.specs.errors import SpecError

    path = str(catalogue.locate(kind, name))
    try:
        document = catalogue.get(kind, name)
    except SpecError as error:
        return {"path": path, "description": "", "problem": str(error)}
    return {"path": path, "description": document.description, "problem": ""}
