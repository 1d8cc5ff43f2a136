"""What the records of ``layout.sim`` have for engines that serve prompts in order (vLLM, TensorRT-LLM; ``ordered``)."""

from __future__ import annotations

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("prompts_head", "i4"),  # running requests whose prompt is unfinished, in running order
    ("prompts_tail", "i4"),
    ("endings_new", "i4"),  # requests that the newest, the older outstanding step makes the last token of
    ("endings_old", "i4"),
]
