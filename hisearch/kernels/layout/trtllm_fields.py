"""What the records of ``layout.sim`` have for TensorRT-LLM."""

from __future__ import annotations

from hisearch.base.engine_rules import fields_of

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("prompt_tokens", "i8"),  # tokens of its last prompt
    ("ended_step", "i8"),  # number of the step that ended it
    ("late_tokens", "i8"),  # 1: it decodes once more behind its last token
    ("credit", "i8"),  # of a context in the batch: cached tokens taken off what its start counts for
    ("counted_tokens", "i8"),  # what its share counts for in the step's budget
    ("rejected_before", "i4"),  # drafts that the step before its newest one rejects; see ``rejected``
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("allocated_pages", "i8"),  # see ``trtllm.memory``
    ("promised_pages", "i8"),
    # In the step being formed: requests that decode once more behind their last token; with drafts, less those that do
    # not decode. Drafts that count in its budget.
    ("late", "i8"),
    ("drafted_tokens", "i8"),
    ("paused", "i4"),  # 1: the pass paused a request
    ("waited_steps", "i8"),  # steps for which contexts were held back to form a larger batch
    # With ``gather_s``: whether the pass waits for requests; those that have come since the last pass; when the newest
    # step's tokens come out, and its place in the log.
    ("gathering", "i4"),
    ("fetched", "i8"),
    ("result_s", "f8"),
    ("logged_step", "i8"),
    # Attention groups, see ``trtllm.ranks``. Leader: requests not dealt yet; steps for which contexts were held back.
    ("undealt_head", "i4"),
    ("undealt_tail", "i4"),
    ("undealt", "i8"),
    ("unequal_steps", "i8"),
    ("batching_steps", "i8"),
    ("active_tokens", "i8"),  # prompt tokens of the rank's requests
    ("skips_pass", "i4"),  # 1: no rank runs in this pass
    ("responded_step", "i8"),  # with drafts: newest step launched when results were last taken in
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("capacity_policy", "i8"),  # GUARANTEED_NO_EVICT, MAX_UTILIZATION or STATIC_BATCH
    ("chunking_policy", "i8"),  # FIRST_COME_FIRST_SERVED or EQUAL_PROGRESS
    ("wait_steps", "i8"),  # most steps for which contexts are held back for a larger batch,
    ("wait_tokens", "f8"),  # and the batch's tokens that end it
    ("gather_s", "f8"),  # longest time for which a pass waits for more requests
    ("balances_ranks", "i8"),  # 1: see ``trtllm.ranks``
    ("balance_timeout_steps", "i8"),
    ("balance_wait_steps", "i8"),
    *fields_of("trtllm"),
]
