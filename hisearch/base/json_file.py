"""JSON files that hisearch wrote, read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: What a damaged file should have been, and how it may have come about.
EXPECTED = "expected JSON as hisearch wrote it; the file was cut off or edited"


def read_json(path: Path) -> Any:
    """What the file holds.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no longer JSON; names file and line.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        where, fault = f"{path}:{error.lineno}", f"{error.msg} column {error.colno}"
        raise ValueError(f"{where}: {EXPECTED}: {fault}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {EXPECTED}: {error}") from error
