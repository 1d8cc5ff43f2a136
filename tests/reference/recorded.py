"""Recorded cases of the shared validation data, as the references take them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from tests.reference.restatement.content import BlockContent
from tests.reference.restatement.recording import Request


def recorded_law(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    """Latency law of the recordings, seconds (``step_latency_s`` in every file)."""
    del sampling
    work = [*chunks, *((1, context) for context in decodes)]
    new_tokens = sum(new for new, _ in work)
    attention = sum(new * (cached + (new + 1) / 2) for new, cached in work)
    return 0.005 + 2e-5 * new_tokens + 1e-9 * attention


def shared_directory() -> Path | None:
    """Validation data: ``$HISEARCH_SHARED``, else ``shared`` next to the repository; ``None`` if absent."""
    named = os.environ.get("HISEARCH_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared"
    return folder if folder.is_dir() else None


def load_recording(path: Path) -> dict[str, Any]:
    """Parse one recorded case."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        document: dict[str, Any] = json.load(file)
    return document


def recorded_requests(document: dict[str, Any], block_tokens: int) -> list[Request]:
    """Requests of a recorded case (output length pinned, so the declared limit equals it)."""
    return [
        Request(
            id=row["id"],
            arrival_s=row["arrival_s"],
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            max_output_tokens=row["output_tokens"],
            content=BlockContent(row["id"], row["block_ids"], block_tokens),
            priority=row.get("priority", 0),
        )
        for row in document["requests"]
    ]
