"""Hugging Face ``config.json`` -> a document of kind Model."""

from __future__ import annotations

import datetime
import re
from pathlib import Path

from hisearch.specs.documents.document import Document
from hisearch.specs.huggingface.translation import model_from_config
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.source import read_source


def read_config(path: Path) -> Document[ModelSpec]:
    """The model described by a ``config.json``, named after the file or, if that is called ``config``, its folder.

    Raises:
        SpecError: not a configuration, an architecture that is not known, or keys that are missing.
    """
    source = read_source(path)
    if not isinstance(source.data, dict):
        raise source.error((), "expected the JSON object of a model's config.json")
    stem = path.stem if path.stem != "config" else path.absolute().parent.name
    name = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._") or "model"
    as_of = datetime.date.fromtimestamp(path.stat().st_mtime)
    return Document("Model", name, model_from_config(source, name, as_of), source)
