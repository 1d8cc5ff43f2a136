"""The documents that a run keeps: its folder can be read where the catalogue has changed, or is another one.

``inputs/`` of a run folder holds every document that the run's study names, laid out as a catalogue, and
``index.json``: for each ``Kind/name`` its file. The study in such a folder is resolved from there (``Kept``); a copy of
it elsewhere, without its pins, asks the same at today's prices.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hisearch.specs.documents.catalogue import Catalogue, is_path
from hisearch.specs.documents.document import Document
from hisearch.specs.documents.kinds import FOLDERS
from hisearch.specs.documents.references import kept_operators
from hisearch.specs.documents.resolved import KEPT_TRACE, ResolvedStudy
from hisearch.specs.errors import SpecError, UnknownReferenceError

INPUTS = "inputs"
INDEX = "index.json"


def keep_documents(studies: Iterable[ResolvedStudy], folder: Path) -> None:
    """Write what ``studies`` name into ``inputs/`` of a run folder; unchanged documents are left as they are.

    Raises:
        OSError: the folder cannot be written.
    """
    named = {f"{kind}/{ref}": document for study in studies for kind, ref, document in references(study)}
    pins = {key: document.digest for key, document in named.items()}
    target = folder / INPUTS
    if _stored_index(target).get("pins") == pins:
        return
    temporary = Path(tempfile.mkdtemp(prefix=f".{INPUTS}.", suffix=".parts", dir=folder))
    temporary.chmod(0o755)
    files: dict[str, str] = {}
    for key, document in named.items():
        files[key] = _write(temporary, document)
    (temporary / INDEX).write_text(json.dumps({"documents": files, "pins": pins}, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)


def references(study: ResolvedStudy) -> Iterator[tuple[str, str, Document[Any]]]:
    """(kind, name as written, document) of everything that ``ResolvedStudy.to_yaml`` leaves to be looked up."""
    pins = study.pins()
    for named in (study.model, study.slo, study.space, study.workload):
        if isinstance(named, Document) and f"{named.kind}/{named.name}" in pins:
            yield named.kind, named.name, named
    yield "LatencyProfile", study.space.spec.profile, study.profile
    hardware = study.hardware
    by_name: tuple[Mapping[str, Document[Any]], ...] = (
        hardware.accelerators, hardware.hosts, hardware.media, hardware.fabrics, hardware.devices,
    )  # fmt: skip
    for documents in by_name:
        for ref, document in documents.items():
            yield document.kind, ref, document


def _write(folder: Path, document: Document[Any]) -> str:
    """Write a document's own text; its place in ``folder``."""
    text = document.path.read_bytes()
    place = Path(FOLDERS[document.kind]) / f"{document.name}.yaml"
    number = 1
    while (folder / place).exists() and (folder / place).read_bytes() != text:
        number += 1
        place = place.with_name(f"{document.name}-{number}.yaml")
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / place).write_bytes(text)
    operators = document.spec.operators if document.kind in {"LatencyProfile", "Device"} else None
    if operators is not None:
        copy = shutil.copytree if Path(operators).is_dir() else shutil.copy
        copy(operators, kept_operators(folder / place))
    return place.as_posix()


def _stored_index(inputs: Path) -> dict[str, Any]:
    """``index.json``; empty where there is none.

    Raises:
        SpecError: it cannot be read.
    """
    path = inputs / INDEX
    if not path.is_file():
        return {}
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(index, dict) or not isinstance(index["documents"], dict):
            raise TypeError("expected an object with documents")
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError.at(f"expected the index of a run's documents: {error}", path=path) from error
    return index


class Kept(Catalogue):
    """What a run folder keeps, before everything else.

    Attributes:
        folder: the run's.
        files: ``Kind/name`` -> file.
    """

    def __init__(self, folder: Path, files: dict[str, Path], catalogue: Catalogue) -> None:
        """Wrap ``catalogue``, which is asked for what the run does not keep."""
        super().__init__(catalogue.root, (folder,))
        self.folder, self.files = folder, files

    def for_file(self, path: Path) -> Catalogue:
        """This catalogue: a run's study needs no other."""
        return self

    def locate(self, kind: str, ref: str, base: Path | None = None) -> Path:
        """See ``Catalogue.locate``."""
        return self.files.get(f"{kind}/{ref}") or super().locate(kind, ref, base)

    def find_file(self, ref: str, base: Path | None = None) -> Path:
        """See ``Catalogue.find_file``; a trace file may be gone if the run keeps the compiled trace."""
        try:
            return super().find_file(ref, base)
        except UnknownReferenceError:
            if not (self.folder / KEPT_TRACE).is_file():
                raise
            return Path(ref)

    def _load(self, kind: str, path: Path, *, named: bool) -> Document[Any]:
        own = path in self.files.values()
        document = super()._load(kind, path, named=named and not own)
        return replace(document, kept=True) if own else document


def kept_with(path: Path, catalogue: Catalogue) -> Kept | None:
    """The documents kept in the folder of a run's study at ``path``; None where there are none.

    Raises:
        SpecError: their index cannot be read.
    """
    folder = path.absolute().parent
    index = _stored_index(folder / INPUTS)
    if not index:
        return None
    files = {key: folder / INPUTS / place for key, place in index["documents"].items()}
    missing = next((file for file in files.values() if not file.is_file()), None)
    if missing is not None:
        raise SpecError.at("no such file: the run's own copy of a document is gone", path=missing)
    return Kept(folder, files, catalogue)


def changed_since(folder: Path, catalogue: Catalogue | None = None) -> Iterator[tuple[str, Document[Any], Any]]:
    """Documents that differ between a run and today's catalogue.

    Args:
        folder: the run's.
        catalogue: today's; the working directory's and what ships where None.

    Yields:
        ``Kind/name``, the run's own document, and today's; None where there is none, or it is not valid.
    """
    catalogue = catalogue or Catalogue()
    kept = kept_with(folder / "study.yaml", catalogue)
    for key in kept.files if kept is not None else ():
        kind, _, ref = key.partition("/")
        if is_path(ref) and not Path(ref).is_absolute():
            continue  # relative to the study's own folder, which the run does not know
        assert kept is not None
        then = kept.get(kind, ref)
        try:
            now = catalogue.get(kind, ref, folder)
        except SpecError:
            now = None
        if now is None or now.digest != then.digest:
            yield key, then, now
