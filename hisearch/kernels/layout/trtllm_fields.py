"""What the records of ``layout.sim`` have for TensorRT-LLM."""

from __future__ import annotations

from hisearch.base.engine_rules import fields_of

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("prompt_tokens", "i8"),  # tokens of its last prompt
    ("ended_step", "i8"),  # serial of the step that ended it
    ("late_tokens", "i8"),  # 1: it decodes once more behind its last token
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("allocated_pages", "i8"),  # see ``trtllm.memory``
    ("promised_pages", "i8"),
    ("late", "i8"),  # requests in the step being formed that decode once more behind their last token
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("capacity_policy", "i8"),  # GUARANTEED_NO_EVICT or MAX_UTILIZATION
    *fields_of("trtllm"),
]
