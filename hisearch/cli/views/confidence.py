"""The output of ``hisearch run`` on what would change a recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hisearch.base.json_file import read_json
from hisearch.cli import output
from hisearch.report.data.stored import CONFIDENCE

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult


def show(result: StudyResult) -> None:
    """Print what would change the answer, the first of each kind; the report has all of them."""
    sentences = result.confidence.sentences if result.confidence is not None else {}
    if not sentences:
        return
    more = sum(len(texts) - 1 for texts in sentences.values())
    output.heading("What would change the answer" + (f" ({more:,} more in the report)" if more else ""))
    for texts in sentences.values():
        output.say(f"- {texts[0]}")


def to_dict(result: StudyResult) -> Any:
    """``confidence.json`` as stored; None without one."""
    path = result.run_dir / CONFIDENCE
    return read_json(path) if path.is_file() else None
