"""What ``hisearch run`` prints of how sure a recommendation is, and of what would change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hisearch.cli import output
from hisearch.report.conclusions import conclusions, few_draws
from hisearch.report.confidence import CONFIDENCE

if TYPE_CHECKING:
    from hisearch.api.result import StudyResult


def show(result: StudyResult) -> None:
    """Print it for people; nothing where it was not looked into."""
    found = conclusions(result.report_input())
    if found is None:
        return
    output.heading("How sure")
    if found.summary:
        output.say(found.summary)
    if found.contenders:
        columns = ("", "deployment", "USD/hour", "meets the SLO", "cheapest that does")
        rows = [("*" if c.chosen else "", c.label, c.price, c.chance, c.cheapest) for c in found.contenders]
        output.say(f"{few_draws(found)}:")
        output.table(columns, rows, numbers=(2, 3, 4))
    if found.changes:
        output.heading("What would change the answer")
        for _, texts in found.changes:
            for text in texts:
                output.say(f"- {text}")
    if found.rules:
        within = f" (lowest latency and most headroom within {found.within})" if found.within else ""
        output.heading(f"By rule{within}")
        rules = [("*" if r.chosen else "", r.title, r.label, r.price) for r in found.rules]
        output.table(("", "rule", "deployment", "USD/hour"), rules, numbers=(3,))


def to_dict(result: StudyResult) -> Any:
    """``confidence.json`` as it is; None where there is none."""
    path = result.run_dir / CONFIDENCE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
