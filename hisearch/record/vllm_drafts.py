"""Drafted tokens for vLLM's scheduler (see ``drafts``)."""

from __future__ import annotations

import random
from typing import Any

from hisearch.record import drafts
from hisearch.record.drafts import METHODS, random_speculation
from hisearch.record.vllm_random import random_case
from hisearch.record.workload import Row


class Drafts(drafts.Drafts):
    """The drafts of one case."""

    @staticmethod
    def padded(output: Any) -> set[str]:
        """Requests of a batch whose drafts are padding, which is never accepted: they were just admitted."""
        resumed = getattr(output.scheduled_cached_reqs, "resumed_req_ids", ())
        return {request.req_id for request in output.scheduled_new_reqs} | set(resumed)

    def hand_in(self, scheduler: Any, names: list[str]) -> None:
        """Give a synchronous scheduler the drafts that follow a step of these requests."""
        from vllm.v1.outputs import DraftTokenIds

        scheduler.update_draft_token_ids(DraftTokenIds(names, [[0] * self.count for _ in names]))


def speculative_config(speculation: dict[str, Any], config: Any) -> Any:
    """Settings for vLLM itself; no drafter is made, so that any method passes for n-gram look-ups at first."""
    from vllm.config import SpeculativeConfig

    settings = SpeculativeConfig(
        method="ngram", num_speculative_tokens=speculation["draft_tokens"], prompt_lookup_max=2, prompt_lookup_min=1,
        target_model_config=config.model_config, target_parallel_config=config.parallel_config,
    )  # fmt: skip
    settings.method = speculation["method"]
    return settings


def random_draft_case(rng: random.Random) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with drafted tokens; asynchronous schedulers have EAGLE's alone."""
    settings, rows, block = random_case(rng)
    speculation = random_speculation(rng, ("eagle",) if settings["async_scheduling"] else METHODS)
    settings["speculation"] = speculation
    most = settings["max_num_seqs"]
    settings["max_tokens"] = max(settings["max_tokens"], most)
    # A request needs pages for drafts behind its last token, and for the drafter's.
    settings["num_blocks"] += -(-2 * speculation["draft_tokens"] // block) + 1
    return settings, rows, block
