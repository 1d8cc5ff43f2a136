"""Drafted tokens for SGLang's scheduler: what steps would have made, and no drafter (see ``record.drafts``)."""

# mypy: allow-untyped-defs, no-warn-unused-ignores

from __future__ import annotations

import random
from typing import Any

from hisearch.record import drafts
from hisearch.record.drafts import METHODS, random_speculation
from hisearch.record.sglang.random_cases import draw_case
from hisearch.record.workload import Row, make_requests

_ALGORITHMS = {"eagle": "EAGLE", "ngram": "NGRAM"}


class Drafts(drafts.Drafts):
    """The drafts of one case.

    Attributes:
        lengths: tokens that each request of the newest decode batch makes, in its order.
    """

    def __init__(self, speculation: dict[str, Any], rows: list[Row]) -> None:
        """``rows``: the requests, in the recording's order."""
        super().__init__(speculation, [row["id"] for row in rows])
        self.lengths: list[int] = []
        self._inputs = {row["id"]: row["input_tokens"] for row in rows}
        self._ends = {row["id"]: row["input_tokens"] + row["output_tokens"] for row in rows}
        #: Output tokens of each request once all launched steps have ended.
        self._generated: dict[Any, int] = {}

    def prompts(self, batch: Any) -> None:
        """A prefill batch is launched: each prompt that ends makes a token."""
        for request in batch.reqs:
            if request is not batch.chunked_req:
                self._generated[request.rid] = len(request.output_ids) + 1

    def decodes(self, batch: Any, tokens: dict[Any, list[int]]) -> list[int]:
        """A decode batch is launched: the tokens of each of its requests, padded to ``1 + count``."""
        self.lengths, made = [], []
        for request in batch.reqs:
            name = request.rid
            at = self._inputs[name] + self._generated[name]
            left = self._ends[name] - at
            # One whose last token is in flight makes tokens that nobody reads.
            length = 1 + self.accepted(name, self._generated[name], self.count) if left > 0 else 1
            run = tokens[name][at : at + length]
            self._generated[name] += min(length, max(left, 0))
            self.lengths.append(length)
            made += run + [0] * (1 + self.count - len(run))
        return made


def arguments(speculation: dict[str, Any]) -> dict[str, Any]:
    """Server arguments of a case's ``speculation``: chains of drafts."""
    count = speculation["draft_tokens"]
    return {
        "speculative_algorithm": _ALGORITHMS[speculation["method"]],
        "speculative_num_steps": count if speculation["method"] == "eagle" else count + 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": count + 1,
    }


def reserve_tokens(speculation: dict[str, Any]) -> int:
    """Slots behind its tokens that a decoding request needs."""
    return 2 * (1 + int(speculation["draft_tokens"]))


def random_draft_case(rng: random.Random, version: str) -> tuple[dict[str, Any], list[Row], int]:
    """Draw a case with drafted tokens; the engine has what is left out, and it is not simulated beside them."""
    config, rows, block = draw_case(rng, version)
    speculation = random_speculation(rng, METHODS)
    config["speculation"] = speculation
    config.pop("hicache", None)
    config["enable_mixed_chunk"] = False
    if config.pop("enable_priority_scheduling", False):
        del config["schedule_low_priority_values_first"], config["priority_scheduling_preemption_threshold"]
    if rng.random() < 0.5:
        rows = _pressing(rng, config)
    config["max_total_tokens"] += reserve_tokens(speculation) + config["page_size"]
    return config, rows, block


def _pressing(rng: random.Random, config: dict[str, Any]) -> list[Row]:
    """Short prompts with long outputs, and a pool that admission overbooks for them: requests are retracted."""
    rows = make_requests(
        {
            "requests": rng.randint(15, 50), "seed": rng.randrange(2**31), "rate_per_s": rng.choice((30.0, 300.0)),
            "input_tokens": [10, rng.choice((60, 200))], "output_tokens": [20, rng.choice((80, 200))],
            "shared_prefixes": {"count": rng.choice((0, 3)), "tokens": [20, 100], "share": 0.5},
            "turns": rng.choice((0.0, 0.3)), "limits": 1.0, "eos": rng.choice((0.3, 1.0)), "max_tokens": 1500,
        }
    )  # fmt: skip
    config["schedule_conservativeness"] = rng.choice((0.05, 0.1, 0.3))
    config["max_running_requests"] = rng.choice((16, 32, 64))
    need = max(row["input_tokens"] + row["max_output_tokens"] for row in rows) + 4 * config["page_size"] + 4
    config["max_total_tokens"] = int(need * rng.choice((1.1, 1.5, 2.0, 3.0)))
    return rows


def write_slots(indices: Any, table: Any, starts: Any, ends: Any, slots: Any, _count: int) -> None:
    """Stands in for the kernel that notes new slots of requests in the pool's table."""
    at = 0
    for row, start, end in zip(indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[at : at + end - start].to(table.dtype)
        at += end - start
