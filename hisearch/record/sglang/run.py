"""One case through the engine's scheduler."""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import importlib
import logging
from typing import Any

from hisearch.record import drafts
from hisearch.record.cases import LAW, EngineError
from hisearch.record.sglang.adapters import Adapters, adapter_id, check_adapters
from hisearch.record.sglang.drafts import Drafts, reserve_tokens
from hisearch.record.sglang.grammars import Grammars, check_grammars, schema_of
from hisearch.record.sglang.settings import block_tokens
from hisearch.record.sglang.standins import install
from hisearch.record.sglang.states import check_states
from hisearch.record.sglang.timeline import Finished, Timeline
from hisearch.record.sglang.tokens import token_ids
from hisearch.record.sglang.windows import check_windows
from hisearch.record.workload import Row

_GENERATIONS = {"0.5.9": "before_0_5_10", "0.5.23": "from_0_5_23"}
_installed: list[str] = []
_HICACHE_KEYS = (
    "hicache_ratio", "hicache_write_policy", "d2h_base_s", "d2h_per_token_s", "h2d_base_s", "h2d_per_token_s",
    "storage", "hicache_storage_prefetch_policy", "prefetch_threshold",
    "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
)  # fmt: skip


def run_case(version: str, config: dict[str, Any], requests: list[Row], spins: bool = True) -> dict[str, Any]:
    """Run a case to its end.

    Args:
        version: of the installed SGLang.
        config: settings by their names in a recording.
        requests: rows of a recording.
        spins: an idle pass with requests waiting is followed by another at the same clock, as in the engine; without,
            the clock jumps to the next event at once.

    Returns:
        The recording.
    """
    if not _installed:
        logging.disable(logging.ERROR)
        install(version)
        _installed.append(version)
    generation = importlib.import_module(f"hisearch.record.sglang.{_GENERATIONS[version]}")
    check(version, config, requests)
    tokens, vocabulary = token_ids(requests, config["block_ids_size"])
    rows = sorted(requests, key=lambda row: (row["arrival_s"], row["id"]))
    overlap = not config.get("disable_overlap_schedule", True)
    speculation = config.get("speculation")
    timeline = Timeline([(row["arrival_s"], row["id"]) for row in rows], overlap, spins)
    scheduler = generation.build(config, timeline, vocabulary)
    scheduler.tokens = tokens
    if config.get("lora"):
        scheduler.use_adapters(Adapters(config["lora"], timeline))
    if config.get("structured"):
        scheduler.use_grammars(Grammars(config["structured"], scheduler, timeline))
    if speculation is not None:
        scheduler.drafts, timeline.law = Drafts(speculation, rows), drafts.step_latency_s
    for index, row in enumerate(rows):
        scheduler.pending[row["id"]] = _request(generation, row, tokens[row["id"]], vocabulary, index)
    try:
        (scheduler.event_loop_overlap if overlap else scheduler.event_loop_normal)()
    except Finished:
        pass
    finally:
        if timeline.threads is not None:
            timeline.threads.close()
    unfinished = [row["id"] for row in rows if str(row["id"]) not in timeline.finish_s]
    if unfinished:
        raise RuntimeError(f"the engine did not finish {', '.join(map(str, unfinished[:5]))}")
    recording = {
        "engine": f"sglang {version} (Scheduler, radix cache / HiCache)",
        "config": config,
        "step_latency_s": LAW if speculation is None else drafts.LAW,
        "requests": requests,
        "steps": timeline.steps,
        "reused_tokens": timeline.reused_tokens,
        "first_token_s": timeline.first_token_s,
        "finish_s": timeline.finish_s,
    }
    if timeline.storage_log:
        recording["storage_log"] = timeline.storage_log
    return recording


def check(version: str, config: dict[str, Any], requests: list[Row]) -> None:
    """Refuse what the version cannot do, or what would never end.

    Raises:
        EngineError: names the setting or the request.
    """
    if version == "0.5.9" and config.get("radix_eviction_policy") == "slru":
        raise EngineError("radix_eviction_policy: sglang 0.5.9 has no slru; it came with 0.5.10")
    for key in config.get("hicache") or ():
        if key not in _HICACHE_KEYS:
            raise EngineError(f"hicache: {key}: unknown key; expected one of {', '.join(_HICACHE_KEYS)}")
    speculation = config.get("speculation")
    if speculation is not None:
        _check_drafts(version, config, speculation)
    check_windows(version, config)
    check_states(version, config)
    check_adapters(version, config, requests)
    check_grammars(config, requests)
    if version != "0.5.23" and config.get("dcp_size", 1) > 1:
        raise EngineError(f"dcp_size: recorded of sglang 0.5.23, not {version}")
    page = block_tokens(config)
    more = 0 if speculation is None else reserve_tokens(speculation)
    pool = config["max_total_tokens"] // page * page
    for row in requests:
        declared = row.get("max_output_tokens", row["output_tokens"])
        if -(-row["input_tokens"] // page) * page + declared + 2 * page + 2 + more > pool:
            raise EngineError(
                f"{row['id']}: {row['input_tokens']} tokens in and {declared} out do not fit the pool of {pool} tokens"
            )


def _check_drafts(version: str, config: dict[str, Any], speculation: dict[str, Any]) -> None:
    if version != "0.5.23":
        raise EngineError(f"speculation: recorded of sglang 0.5.23, not {version}")
    if problem := drafts.problem(speculation):
        raise EngineError(problem)
    for key in ("hicache", "enable_mixed_chunk", "enable_priority_scheduling"):
        if config.get(key):
            raise EngineError(f"speculation beside {key} is not recorded")


def _request(generation: Any, row: Row, tokens: list[int], vocabulary: int, index: int) -> Any:
    """The engine's request; one with a declared limit beyond its output ends by a token of its own."""
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    declared = row.get("max_output_tokens")
    asked = row["input_tokens"] + row["output_tokens"]
    ends = {tokens[asked - 1]} if declared is not None and declared > row["output_tokens"] else set()
    sampling = SamplingParams(
        max_new_tokens=declared or row["output_tokens"],
        ignore_eos=declared is None,
        temperature=0,
        json_schema=schema_of(row.get("grammar")),
    )
    sampling.normalize(None)

    class Request(Req):  # type: ignore[misc]
        """Its place in a set follows its arrival, not its address: what the engine iterates over is repeatable."""

        def __hash__(self) -> int:
            return index

        __eq__ = object.__eq__

    prompt = generation.id_sequence(tokens[: row["input_tokens"]])
    return Request(
        row["id"],
        "",
        prompt,
        sampling,
        eos_token_ids=ends,
        vocab_size=vocabulary,
        priority=row.get("priority"),
        lora_id=adapter_id(row.get("adapter")),
    )
