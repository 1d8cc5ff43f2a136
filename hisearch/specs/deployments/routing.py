"""Routers and admission: which worker a request goes to, and whether it is let in."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hisearch.specs.base import Count, NonNegativeInt, Positive, Strict

RouterName = Literal[
    "random",
    "round_robin",
    "power_of_two",
    "cache_aware",
    "bucket",
    "least_outstanding_tokens",
    "consistent_hash",
    "kv_aware",
    "weighted",
    "cost_aware",
]
#: Policy -> the parameters of a router that it reads, beside its name.
ROUTER_PARAMETERS: dict[RouterName, tuple[str, ...]] = {
    "random": (),
    "round_robin": (),
    "power_of_two": (),
    "cache_aware": (
        "cache_threshold", "balance_abs_threshold", "balance_rel_threshold", "max_tree_tokens", "eviction_interval_s",
    ),
    "bucket": ("balance_abs_threshold", "balance_rel_threshold", "bucket_window_s"),
    "least_outstanding_tokens": (),
    "consistent_hash": ("hash_key", "prefix_tokens", "load_factor"),
    "kv_aware": ("overlap_weight", "staleness_s"),
    "weighted": (),
    "cost_aware": ("fill_requests",),
}  # fmt: skip

HashKeyName = Literal["session", "prefix"]
AdmissionName = Literal["none", "queue_cap", "token_bucket", "slo_shedding"]

#: Policies that keep a picture of the workers' caches or of prompt lengths, of no use in front of decode workers.
PROMPT_POLICIES: tuple[RouterName, ...] = ("cache_aware", "bucket", "kv_aware")


class RouterSpec(Strict):
    """Policy of a router; SGLang router's names, defaults and meanings where it has the policy."""

    policy: RouterName = Field(
        "round_robin",
        description="random; round_robin; power_of_two: of two random workers the less loaded by tokens; cache_aware: "
        "balance first, then the longest prefix believed to be cached; bucket: a range of prompt lengths for each "
        "worker, drawn so that all carry the same load; least_outstanding_tokens: fewest prompt tokens in flight for "
        "its capacity; consistent_hash: by session or prefix; kv_aware: sees the workers' caches; weighted: in turn, "
        "by capacity; cost_aware: the cheapest worker with room.",
    )
    cache_threshold: Annotated[float, Field(ge=0, le=1)] = Field(
        0.3,
        description="cache_aware: share of a prompt that a match must exceed; else the worker with the smallest cache "
        "is taken.",
    )
    balance_abs_threshold: NonNegativeInt = Field(
        64,
        description="cache_aware, bucket: the least loaded worker is taken where the spread of load (requests in "
        "flight; for bucket prompt tokens of the window) exceeds this and …",
    )
    balance_rel_threshold: Annotated[float, Field(ge=1)] = Field(
        1.5, description="… the most loaded worker has more than so many times the least loaded one's."
    )
    max_tree_tokens: Count | None = Field(
        None,
        description="cache_aware: most that a worker is believed to hold once its tree is trimmed (SGLang router: "
        "--max-tree-size, in characters); never trimmed where absent.",
    )
    eviction_interval_s: Positive = Field(120.0, description="cache_aware: seconds between two trimmings.")
    bucket_window_s: Positive = Field(
        5.0, description="bucket: length of the window whose load counts, and time between two drawings."
    )
    hash_key: HashKeyName = Field(
        "session", description="consistent_hash: what is hashed, the session or the prompt's first tokens."
    )
    prefix_tokens: Count = Field(256, description="consistent_hash by prefix: tokens that are hashed.")
    load_factor: Annotated[float, Field(ge=1)] = Field(
        1.25, description="consistent_hash: a worker takes at most so many times the mean of requests in flight."
    )
    overlap_weight: Positive = Field(
        1.0, description="kv_aware: what a prompt token that is not cached weighs, in prompt tokens in flight."
    )
    staleness_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="kv_aware: seconds between two looks at the caches; 0: it always sees them as they are."
    )
    fill_requests: Count = Field(
        8, description="cost_aware: requests in flight on a worker of full capacity before a dearer one is asked."
    )

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads; without those that another one's value leaves without effect."""
        found = {name: getattr(self, name) for name in ROUTER_PARAMETERS[self.policy]}
        if self.policy == "cache_aware" and self.max_tree_tokens is None:
            found.pop("eviction_interval_s")
        if self.policy == "consistent_hash" and self.hash_key == "session":
            found.pop("prefix_tokens")
        return {name: value for name, value in found.items() if value is not None}


class ModelRoutersSpec(Strict):
    """Routers of one of several models, in place of the deployment's."""

    router: RouterSpec | None = Field(None, description="As the deployment's router, which it replaces.")
    decode_router: RouterSpec | None = Field(None, description="As the deployment's decode_router, which it replaces.")


class AdmissionSpec(Strict):
    """Which arriving requests are let in; the others are shed at once, and count as rejected."""

    policy: AdmissionName = Field(
        "none",
        description="none: all; queue_cap: as long as fewer than so many are in flight; token_bucket: at a rate; "
        "slo_shedding: where a first token is to be expected in time.",
    )
    requests_per_worker: Count = Field(256, description="queue_cap: in flight, for each worker that takes requests.")
    rate_rps: Positive = Field(10.0, description="token_bucket: requests a second.")
    burst_requests: Positive = Field(20.0, description="token_bucket: requests at once.")
    max_wait_s: Positive = Field(
        10.0,
        description="slo_shedding: prompt tokens waiting for their first token on the least loaded worker, over the "
        "tokens it computes a second, must not exceed this.",
    )

    def parameters(self) -> dict[str, Any]:
        """Values of what its policy reads."""
        return {name: getattr(self, name) for name in _ADMISSION_PARAMETERS[self.policy]}


_ADMISSION_PARAMETERS: dict[AdmissionName, tuple[str, ...]] = {
    "none": (),
    "queue_cap": ("requests_per_worker",),
    "token_bucket": ("rate_rps", "burst_requests"),
    "slo_shedding": ("max_wait_s",),
}
