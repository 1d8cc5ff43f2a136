"""What engines decide otherwise from one release to the next, as data.

A rule is named, dated by the first release that has it, and sourced. Kernels ask for it by name, ``sim.config.RULE``
(1: it holds); the record's fields are made from this table. ``specs.deployments.engine_rules`` says which hold in a
release.
Settings that a release does not have are refused by the specs (``SETTINGS_SINCE``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """A decision that changed.

    Attributes:
        name: field of the kernels' record of settings.
        since: first release that decides so.
        before: what releases before it do. after: what it and later ones do.
        source: where the engine does it.
    """

    name: str
    since: str
    before: str
    after: str
    source: str


#: Releases whose decisions were recorded and are reproduced step by step, oldest first.
MODELLED: dict[str, tuple[str, ...]] = {"vllm": ("0.19.1", "0.33.0"), "sglang": ("0.5.9", "0.5.23")}

RULES: dict[str, tuple[Rule, ...]] = {
    "vllm": (
        Rule(
            "unhashed_first",
            "0.24.0",
            "Freed blocks join the back of the free queue.",
            "Freed blocks without a hash, which no look-up finds, join its front.",
            "block_pool.BlockPool.free_blocks",
        ),
        Rule(
            "exact_victims",
            "0.28.0",
            "Under priority, a victim ahead of the request being served that had no part in the step makes the pass "
            "skip a request.",
            "The pass goes on with the next request.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "outlives_own_preemption",
            "0.33.0",
            "Under priority, a request that preempts itself ends the service of running requests.",
            "The requests behind it are still served.",
            "sched.scheduler.Scheduler.schedule",
        ),
        Rule(
            "lone_prompt_uncut",
            "0.31.0",
            "long_prefill_token_threshold cuts every prompt.",
            "It does not cut the prompt of the only request.",
            "sched.scheduler.Scheduler.schedule",
        ),
    ),
    "sglang": (),
}


#: First releases that have a setting, by engine and key of the deployment's engine.
SETTINGS_SINCE: dict[str, dict[str, str]] = {"vllm": {"watermark": "0.24.0"}, "sglang": {}}


def fields_of(engine: str) -> list[tuple[str, str]]:
    """Fields of the kernels' record of settings, one for each rule of ``engine``."""
    return [(rule.name, "i8") for rule in RULES[engine]]
