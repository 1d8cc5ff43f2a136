"""Output of ``hisearch simulate --by``: what requests of each priority, or of each tenant, get and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hisearch.cli import output
from hisearch.report.words.terms import seconds
from hisearch.score.classes import ClassShare
from hisearch.score.fairness import ServiceDifference
from hisearch.score.quantities import percent, significant, usd

#: Latencies that are printed; ``--json`` has more.
_SHOWN = ("ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "ttfo_p95_s", "tpot_p95_s", "e2e_p95_s")


def show_classes(by: str, shares: Sequence[ClassShare], fairness: ServiceDifference | None = None) -> None:
    """Print a row per class, and of tenants the largest difference of service."""
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
    if fairness is not None:
        output.say(
            f"Largest difference of service: tenant {fairness.more} got {fairness.tokens:,.0f} weighted tokens "
            f"({percent(fairness.share)} of what both got) more than tenant {fairness.less} in "
            f"{seconds(fairness.to_s - fairness.from_s)} during which both had requests waiting."
        )


def _title(name: str) -> str:
    metric, point, _ = name.split("_")
    return f"{metric.upper()} {point}"
