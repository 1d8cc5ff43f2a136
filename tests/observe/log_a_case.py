"""Record a random case with the step log and without: run with a Python that has vLLM.

``python log_a_case.py SEED async|sync [broken]`` writes the log to $HISEARCH_STEP_LOG and both recordings as JSON to
standard output. broken: the log fails in the middle.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any

from hisearch.record import vllm
from hisearch.record.cases import Case
from hisearch.record.workload import add_block_ids


def main() -> None:
    """Draw, record twice, write."""
    seed, mode, *broken = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints what it likes.
    settings, rows, block_tokens = vllm.draw(random.Random(int(seed)))
    settings |= {"async_scheduling": mode == "async", "prefix": True}
    for key in ("offload", "sliding_window", "hybrid_window"):
        settings.pop(key, None)
    add_block_ids(rows, block_tokens)
    plain = vllm.record(Case("plain", settings, rows))

    from vllm.config import SchedulerConfig  # type: ignore[import-not-found]

    from hisearch.observe import vllm_step_log

    SchedulerConfig.get_scheduler_cls = lambda _: vllm_step_log.StepLogScheduler
    if broken:
        calls = iter(range(20))
        written = vllm_step_log._Log.pass_ended

        def fail(self: Any, *arguments: Any) -> None:
            if next(calls, None) is None:
                raise OSError("no space")
            written(self, *arguments)

        vllm_step_log._Log.pass_ended = fail  # type: ignore[method-assign]
    logged = vllm.record(Case("logged", settings, rows))
    with answers:
        json.dump({"plain": plain, "logged": logged, "block_tokens": block_tokens}, answers)


if __name__ == "__main__":
    main()
