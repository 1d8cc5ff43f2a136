"""What the records of ``layout.sim`` have for vLLM, by whose step rule decode workers of every engine run."""

from __future__ import annotations

from hisearch.base.engine_rules import fields_of

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    # Steps by their numbers, which ``WORKER.launched_step`` counts.
    ("sampled_step", "i8"),  # the newest that sampled a token for it; see ``vllm.memory``
    ("scheduled_step", "i8"),  # the newest that it was put into; not updated while decoding
    ("scheduled_step_before", "i8"),  # ``scheduled_step`` before the newest chunk of its prompt
    ("first_decode_step", "i8"),  # the first in which it decodes
    ("was_skipped", "i4"),  # 1 where it was skipped in the step before ``first_decode_step``
    ("caching_lag", "i4"),  # see ``vllm.memory.caching_lag``
    ("passed_over", "i4"),  # 1 where a pass left it for want of a place for its adapter
    ("redirect", "i4"),  # first redirect record of its path (see ``queue``), -1: none
    # With drafted tokens, SGLang's too (see ``vllm.drafts.step``): tokens that its newest step makes, drafts that this
    # step rejects, and tokens that it has pages for.
    ("made", "i4"),
    ("rejected", "i4"),
    ("reserved_tokens", "i8"),
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("ready_s", "f8"),  # vLLM with offloading: earliest start of its batch
    ("skipped_decodes", "i4"),  # that were skipped in the newest step
    ("skipped_head", "i4"),  # decodes that the step being formed leaves out
    ("futile_preemptions", "i4"),  # since the last sampled token
    ("lost_head", "i4"),  # requests preempted in the newest pass, by prev_aside
    ("deferred_head", "i4"),  # finished requests whose pages are freed with the newest step's results, by next_aside
    ("deferred_tail", "i4"),
]

#: State of a worker of engines that serve prompts in order: TensorRT-LLM's too (see ``engine.ordered``).
ORDERED: list[tuple[str, str]] = [
    ("prompts_head", "i4"),  # running requests whose prompt is unfinished, in running order
    ("prompts_tail", "i4"),
    ("endings_new", "i4"),  # requests that the newest, the older outstanding step makes the last token of
    ("endings_old", "i4"),
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("long_prefill_tokens", "i8"),  # most tokens of one request a step; 0: no such limit
    ("long_prefill_adaptive", "i8"),  # … unless an equal share of the step's budget is more
    ("reserve_full_prompt", "i8"),  # admission needs pages for all known tokens, not only for the first chunk
    ("watermark_pages", "i8"),  # pages that admission leaves free
    ("draft_tokens", "i8"),  # drafted for each request that has made a token; 0: no speculation
    ("lookahead_tokens", "i8"),  # pages are taken for that many tokens behind those of a step: the drafter's
    ("reads_next_token", "i8"),  # the drafter's KV of a place depends on the token behind it
    ("draft_seed", "i8"),  # of the draws of how many drafts are accepted
    ("shared_outputs", "i8"),  # prompts may contain outputs of requests that still decode (owner_head)
    *fields_of("vllm"),  # whether each dated rule holds
]
