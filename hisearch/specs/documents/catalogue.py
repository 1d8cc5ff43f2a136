"""Look-up of documents by kind and name: the user's folders first, then what ships with hisearch."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hisearch.specs.documents.document import Document, parse_document
from hisearch.specs.documents.huggingface import read_config
from hisearch.specs.documents.kinds import FOLDERS
from hisearch.specs.errors import SpecError, UnknownReferenceError, shown_path
from hisearch.specs.source import TRACE_SUFFIXES, read_source
from hisearch.specs.wording import closest, unknown

YAML_SUFFIXES = (".yaml", ".yml")
_PATHS = (*YAML_SUFFIXES, ".json")
#: Documents that the catalogue had, and what takes their place.
REMOVED = {
    f"{engine}-rtx4090": "take auto, which carries an L40S's laws to an RTX 4090"
    for engine in ("vllm", "sglang", "trtllm")
}


@cache
def shipped_root() -> Path:
    """Folder of the catalogue that ships: inside the package, or the repository's top level in a source checkout.

    Raises:
        FileNotFoundError: neither is there; the installation is broken.
    """
    package = Path(__file__).resolve().parents[2]
    for root in (package / "catalogue", package.parent):
        if (root / FOLDERS["Accelerator"]).is_dir():
            return root
    raise FileNotFoundError(f"no catalogue next to or inside {package}; reinstall hisearch")


def is_path(ref: str) -> bool:
    """True for a reference by path: it holds a slash or ends in .yaml, .yml or .json. Anything else is a name."""
    return "/" in ref or ref.endswith(_PATHS)


def _describe_path(path: Path) -> str:
    """Kind of file or folder at an existing path, for messages."""
    if path.is_dir():
        return "the folder of a run" if (path / "provenance.json").is_file() else "a folder"
    return "a trace file" if path.name.endswith(TRACE_SUFFIXES) else "a file"


def _sibling_files(path: Path) -> list[Path]:
    """Files in the folder of ``path`` with the same suffix."""
    folder = path.parent
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if entry.suffix == path.suffix and entry.is_file())


class Catalogue:
    """Documents by kind and name.

    Folders are searched in order: the working directory's (``./slos``, ``./spaces``, ``./traces``,
    ``./profiles/…``, ``./studies``), those next to the study, and what ships.

    Args:
        root: the working directory; the process's where None.
        extra_roots: further roots, searched after ``root``.
    """

    def __init__(self, root: Path | None = None, extra_roots: tuple[Path, ...] = ()) -> None:
        self.root = (root or Path.cwd()).absolute()
        self._roots = tuple(dict.fromkeys((self.root, *extra_roots, shipped_root())))
        self._loaded: dict[tuple[str, Path], Document[Any]] = {}

    def for_file(self, path: Path) -> Catalogue:
        """This catalogue, extended by the folder of the file at ``path`` and the catalogue that the file belongs to."""
        folder = path.absolute().parent
        owners = [folder.parents[len(Path(part).parts) - 1] for part in FOLDERS.values() if folder.match(f"*/{part}")]
        return Catalogue(self.root, (folder, *owners))

    def names(self, kind: str) -> list[str]:
        """Names of all documents of ``kind``, sorted."""
        return sorted(self._by_name(kind))

    def locate(self, kind: str, ref: str, base: Path | None = None) -> Path:
        """File that ``ref`` leads to.

        Args:
            kind: kind of document.
            ref: a catalogue name or a path.
            base: folder that a relative path is tried from before the working directory.

        Raises:
            UnknownReferenceError: there is none.
        """
        if is_path(ref):
            try:
                return self.find_file(ref, base)
            except UnknownReferenceError as error:
                if kind != "Model" or ref.endswith(_PATHS):
                    raise
                hint = (
                    "; a document names a model by its catalogue name. `size` and `run` find it by Hugging Face id too"
                )
                raise UnknownReferenceError.at(error.message + hint) from None
        paths = self._by_name(kind)
        if ref not in paths:
            raise self.unknown(ref, kind, sorted(paths))
        return paths[ref]

    def unknown(self, ref: str, kinds: str, known: Iterable[str]) -> SpecError:
        """The error of an unknown name; where a file or folder has that name, it says what that is.

        Args:
            ref: the name.
            kinds: those that are expected, "Study or SLO"; "" for any.
            known: names of that kind.

        Returns:
            An ``UnknownReferenceError``, to be raised.
        """
        path = self.root / Path(ref).expanduser()
        if ref in REMOVED:
            return UnknownReferenceError.at(f"no {kinds or 'document'} named '{ref}' any more: {REMOVED[ref]}")
        if not path.exists():
            return UnknownReferenceError.at(f"no {kinds or 'document'} named '{ref}'{unknown(ref, known)}")
        expected = f"a document of kind {kinds}" if kinds else "a document"
        hint = "; `hisearch trace stats` checks a trace" if path.name.endswith(TRACE_SUFFIXES) and not kinds else ""
        return UnknownReferenceError.at(
            f"{ref} is {_describe_path(path)}; expected {expected}, by its catalogue name or its path{hint}"
        )

    def find_workload_file(self, ref: str, base: Path | None = None) -> Path | None:
        """File that a reference to a workload leads to, a YAML document or a trace; None for a catalogue name.

        A name that the catalogue does not have is a path too, where there is such a file.

        Raises:
            UnknownReferenceError: ``ref`` is a path, and there is no such file.
        """
        if is_path(ref) or ref.endswith(TRACE_SUFFIXES):
            return self.find_file(ref, base)
        matches = [path for folder in (base or self.root, self.root) if (path := folder / ref).exists()]
        if not matches or ref in self._by_name("Workload"):
            return None
        if matches[0].is_dir():
            message = "expected a document of kind Workload, by its catalogue name or its path, or a trace file"
            raise UnknownReferenceError.at(f"{ref} is {_describe_path(matches[0])}; {message}")
        return self.find_file(ref, base)

    def find_file(self, ref: str, base: Path | None = None) -> Path:
        """Existing file at ``ref``, tried from ``base`` and then from the working directory.

        Raises:
            UnknownReferenceError: there is none.
        """
        path = Path(ref).expanduser()
        tried = [folder / path for folder in dict.fromkeys((base or self.root, self.root))]
        for candidate in tried:
            if candidate.is_file():
                return candidate.resolve() if ".." in candidate.parts else candidate.absolute()
        folder = next((candidate for candidate in tried if candidate.is_dir()), None)
        if folder is not None:
            raise UnknownReferenceError.at(f"{shown_path(folder)} is {_describe_path(folder)}; expected a file")
        places = " or ".join(dict.fromkeys(shown_path(candidate) for candidate in tried))
        siblings = (sibling.name for candidate in tried for sibling in _sibling_files(candidate))
        raise UnknownReferenceError.at(f"no file at {places}{closest(path.name, siblings)}")

    def get(self, kind: str, ref: str, base: Path | None = None) -> Document[Any]:
        """The document of ``kind`` that ``ref`` leads to; of kind Model also a Hugging Face ``config.json``.

        Raises:
            UnknownReferenceError: there is none.
            SpecError: the document is not valid, or not named as its file.
        """
        path = self.locate(kind, ref, base)
        key = (kind, path)
        if key not in self._loaded:
            self._loaded[key] = self._load(kind, path, named=not is_path(ref))
        return self._loaded[key]

    def _load(self, kind: str, path: Path, *, named: bool) -> Document[Any]:
        if path.suffix == ".json":
            if kind != "Model":
                raise SpecError.at(f"expected a YAML document of kind {kind}", path=path)
            return read_config(path)
        document = _parsed(kind, path)
        if named and document.name != path.stem:
            raise document.error("metadata.name", f"'{document.name}' is not the file's name, '{path.stem}'")
        return document

    def _by_name(self, kind: str) -> dict[str, Path]:
        """Name -> file, the first root winning."""
        paths: dict[str, Path] = {}
        for root in self._roots:
            folder = root / FOLDERS[kind]
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if path.suffix in YAML_SUFFIXES and path.is_file():
                    paths.setdefault(path.stem, path)
        return paths


def _parsed(kind: str, path: Path) -> Document[Any]:
    """A file's document; of the shipped catalogue it is read once, whatever folders it is seen from."""
    if not path.is_relative_to(shipped_root()):
        return parse_document(read_source(path), kind)
    status = path.stat()
    return _shipped(kind, path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _shipped(kind: str, path: Path, changed_ns: int, size_bytes: int) -> Document[Any]:
    return parse_document(read_source(path), kind)
