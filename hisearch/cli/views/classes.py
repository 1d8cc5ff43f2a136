"""Output of ``hisearch simulate --by``: what requests of each priority, or of each tenant, get and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.cli import output
from hisearch.report.words.terms import seconds
from hisearch.score.classes import ClassShare
from hisearch.score.quantities import percent, significant, usd

#: Latencies that are printed; ``--json`` has more.
_SHOWN = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "ttfo_p95_s", "tpot_p95_s", "e2e_p95_s")


def show_classes(by: str, shares: Sequence[ClassShare]) -> None:
    """Print a row per class."""
    with_slo = any(math.isfinite(share.attainment) for share in shares)
    output.heading(f"By {by}")
    output.records(
        [
            {
                by: str(share.number),
                "requests": f"{share.arrived:,}",
                **{_title(name): seconds(share.latencies[name]) for name in _SHOWN if name in share.latencies},
                **(
                    {"meet their terms": percent(share.attainment), "good/s": significant(share.goodput_rps)}
                    if with_slo
                    else {}
                ),
                "share": percent(share.occupancy),
                "per hour": usd(share.usd_per_hour),
            }
            for share in shares
        ]
    )
    output.say("Share: of the seconds that tokens held KV memory; dollars go by it.")


def _title(name: str) -> str:
    metric, point, _ = name.split("_")
    return f"{metric.upper()} {point}"
