"""One case through the engine's scheduler."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any

from hisearch.record.sglang.standins import install
from hisearch.record.sglang.timeline import LAW, Finished, Timeline
from hisearch.record.sglang.tokens import token_ids

_installed = False


def record_case(config: dict[str, Any], requests: list[dict[str, Any]], spins: bool = True) -> dict[str, Any]:
    global _installed
    engine = version("sglang")
    if not _installed:
        logging.disable(logging.ERROR)
        install(engine)
        _installed = True
    if engine == "0.5.9":
        from hisearch.record.sglang import before_0_5_10 as generation
    else:
        from hisearch.record.sglang import from_0_5_23 as generation
    tokens, vocabulary = token_ids(requests, config["block_ids_size"])
    arrivals = [(row["arrival_s"], row["id"]) for row in sorted(requests, key=lambda row: (row["arrival_s"], row["id"]))]
    timeline = Timeline(arrivals, not config.get("disable_overlap_schedule", False), spins)
    scheduler = generation.build(config, timeline, vocabulary)
    scheduler.tokens = tokens
    for row in requests:
        scheduler.pending[row["id"]] = make_request(generation, row, tokens[row["id"]], vocabulary)
    try:
        (scheduler.event_loop_overlap if scheduler.enable_overlap else scheduler.event_loop_normal)()
    except Finished:
        pass
    finally:
        if timeline.threads is not None:
            timeline.threads.close()
    return {
        "engine": f"sglang {engine} (Scheduler, radix cache / HiCache)",
        "config": config, "step_latency_s": LAW, "requests": requests, "steps": timeline.steps,
        "reused_tokens": timeline.reused_tokens, "first_token_s": timeline.first_token_s, "finish_s": timeline.finish_s, "storage_log": timeline.storage_log,
    }


def make_request(generation: Any, row: dict[str, Any], tokens: list[int], vocabulary: int) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    declared = row.get("max_output_tokens")
    ends = set()
    if declared is not None and declared > row["output_tokens"]:
        ends = {tokens[row["input_tokens"] + row["output_tokens"] - 1]}
    sampling = SamplingParams(max_new_tokens=declared or row["output_tokens"], ignore_eos=declared is None, temperature=0)
    sampling.normalize(None)
    return Req(
        row["id"], "", generation.id_sequence(tokens[: row["input_tokens"]]), sampling, eos_token_ids=ends, vocab_size=vocabulary, priority=row.get("priority"),
    )
