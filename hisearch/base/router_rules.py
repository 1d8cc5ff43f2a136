"""Routers whose policies are simulated, and what one decides otherwise from release to release, as data.

Kernels ask for a rule by name, ``route.RULE`` (1: it holds); the record's fields are made from this table (see
``base.engine_rules``).
"""

from __future__ import annotations

from hisearch.base.rule import Rule

#: The router whose releases are told apart, as deployments name it.
SGLANG_ROUTER = "sglang-router"

#: Releases that may be named, the first and the last; as policies name their ``product``. Choices of sglang-router
#: 0.3.2 were recorded and are reproduced; the others' rules were read in their sources and compared with no recording.
MODELLED_ROUTERS: dict[str, tuple[str, ...]] = {
    SGLANG_ROUTER: ("0.2.3", "0.3.2"),
    "dynamo": ("1.1.1",),
    "llm-d": ("0.6.0",),
    "production-stack": ("0.1.11",),
    "aibrix": ("0.5.0",),
}

ROUTER_RULES: tuple[Rule, ...] = (
    Rule(
        "unmatched_to_fewest",
        "0.2.4",
        "Under cache_aware, a prompt without a match goes to the worker with the smallest tree.",
        "It goes to the worker with the fewest requests in flight.",
        "policies/cache_aware.rs: CacheAwarePolicy.select_worker",
    ),
)


def router_fields() -> list[tuple[str, str]]:
    """Fields of the kernels' record of a route, one for each rule."""
    return [(rule.name, "i8") for rule in ROUTER_RULES]
