"""Folders that ``hisearch observe`` has written, read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hisearch.export.context import document_text
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment


def resolved_deployment(spec: Mapping[str, Any], catalogue: Catalogue) -> ResolvedDeployment:
    """A deployment that is in no file yet.

    Raises:
        SpecError: it is not valid, or names nothing.
    """
    import tempfile

    with tempfile.TemporaryDirectory(prefix="hisearch-") as folder:
        path = Path(folder) / "deployment.yaml"
        path.write_text(document_text("Deployment", "observed", "", dict(spec)), encoding="utf-8")
        return load_deployment(path, (), catalogue)
