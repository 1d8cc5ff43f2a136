"""Models of the catalogue by what is served: Hugging Face ids, of the model itself and of its other checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from hisearch.specs.documents.catalogue import Catalogue, is_path
from hisearch.specs.documents.document import Document
from hisearch.specs.errors import SpecError, UnknownReferenceError
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.wording import closest

#: ORGANISATION/MODEL, which no path begins like.
_HUGGINGFACE_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_PATHS = (".yaml", ".yml", ".json")


class Checkpoint(NamedTuple):
    """A checkpoint of a catalogue's model, as published."""

    huggingface_id: str
    model: Document[ModelSpec]

    @property
    def other_id(self) -> str | None:
        """Its id where it is not the model's own, which a study then states; else None."""
        return None if self.huggingface_id == self.model.spec.huggingface_id else self.huggingface_id


def checkpoints(catalogue: Catalogue) -> list[Checkpoint]:
    """All that are known, models' own first. A model whose file is broken has none."""
    models: list[Document[ModelSpec]] = []
    for name in catalogue.names("Model"):
        try:
            models.append(catalogue.get("Model", name))
        except SpecError:  # another model's file is broken: it is not the one that is asked for
            continue
    own = [Checkpoint(model.spec.huggingface_id, model) for model in models]
    return [*own, *(Checkpoint(other, model) for model in models for other in model.spec.checkpoints)]


def find_checkpoint(ref: str, catalogue: Catalogue) -> Checkpoint | None:
    """The checkpoint of this Hugging Face id, or of this name without its organisation, in any case of letters."""
    wanted = ref.rstrip("/").lower()
    known = checkpoints(catalogue)
    by_id = next((each for each in known if each.huggingface_id.lower() == wanted), None)
    if by_id is not None or "/" in wanted:
        return by_id
    return next((each for each in known if each.huggingface_id.lower().rpartition("/")[2] == wanted), None)


def named_model(ref: str, catalogue: Catalogue) -> tuple[dict[str, str], Document[ModelSpec]]:
    """What a study says of a model that somebody names, and the model.

    Args:
        ref: a catalogue name, the id or name of a checkpoint, or the path of a document, a config.json or its folder.
        catalogue: where names are looked up.

    Raises:
        UnknownReferenceError: it leads nowhere; with the key ``model``.
        SpecError: the model's file is not valid.
    """
    path = (catalogue.root / Path(ref).expanduser()).absolute()
    if path.is_dir() and (path / "config.json").is_file():
        path = path / "config.json"
    if is_path(ref) and path.is_file():
        return {"model": str(path)}, catalogue.get("Model", str(path))
    if ref not in catalogue.names("Model") and (checkpoint := find_checkpoint(ref, catalogue)) is not None:
        stated = {"model": checkpoint.model.path.stem}
        if checkpoint.other_id is not None:
            stated["huggingface_id"] = checkpoint.other_id
        return stated, checkpoint.model
    if _HUGGINGFACE_ID.fullmatch(ref) and not ref.endswith(_PATHS):
        near = closest(ref, [known.huggingface_id for known in checkpoints(catalogue)])
        raise UnknownReferenceError.at(
            f"no model of the catalogue has the Hugging Face id '{ref}'{near + ' Otherwise' if near else ';'} download "
            f"its config.json (https://huggingface.co/{ref}/blob/main/config.json) and name that file",
            key="model",
        )
    try:
        return {"model": ref}, catalogue.get("Model", ref)
    except UnknownReferenceError as error:
        raise UnknownReferenceError.at(error.message, key="model") from None
