"""Which rules a router's release decides by (see ``hisearch.base.router_rules``)."""

from __future__ import annotations

from hisearch.base.router_rules import ROUTER_RULES
from hisearch.specs.versions import precedes


def router_rules_in_force(version: str) -> dict[str, bool]:
    """Whether each rule of sglang-router holds in release ``version``, by name."""
    return {rule.name: not precedes(version, rule.since) for rule in ROUTER_RULES}
