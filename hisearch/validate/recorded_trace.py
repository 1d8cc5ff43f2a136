"""A recording's requests as a trace."""

from __future__ import annotations

import numpy as np

from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.traces.adapters import RequestAdapters, RequestGrammars
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.reading.source import Requests
from hisearch.traces.trace import make_trace
from hisearch.validate.recorded_settings import VllmSettings
from hisearch.validate.recording import EngineRecording, RequestRow


def compiled_trace(recording: EngineRecording) -> CompiledTrace:
    """The requests with their shared blocks, compiled for simulations."""
    rows, block = recording.requests, recording.block_tokens
    requests = Requests()
    for row in rows:
        requests.add(
            row.arrival_s, row.input_tokens, row.output_tokens, request_id=str(row.id), ids=row.block_ids,
            known_tokens=block * len(row.block_ids),
        )  # fmt: skip
    # Only their differences matter; a trace counts them from 0.
    priority = np.array([row.priority for row in rows], np.int64)
    priority -= priority.min()
    if priority.max() >= 2**31:
        raise recording.error("requests", f"priorities differ by {priority.max()}, which a trace cannot hold")
    limits = [declared_limit(recording, row) for row in rows]
    adapters, grammars = _adapters(recording), _grammars(recording)
    return trace_of(requests, block, recording.path.name, priority, limits, adapters, grammars)


def _adapters(recording: EngineRecording) -> RequestAdapters | None:
    """The adapters that requests name, in the order of their numbers, in which recorders have engines go through them.

    Raises:
        RecordingError: requests name adapters, and the engine serves none.
    """
    numbers = sorted({row.adapter for row in recording.requests if row.adapter is not None})
    if not numbers:
        return None
    if recording.settings.lora is None:
        raise recording.error("requests", "requests name an adapter, and config has no lora")
    of = {number: k for k, number in enumerate(numbers)}
    adapter = [-1 if row.adapter is None else of[row.adapter] for row in recording.requests]
    names = tuple(str(number) for number in numbers)
    return RequestAdapters(names, np.zeros(len(names), np.int32), np.array(adapter, np.int32))


def _grammars(recording: EngineRecording) -> RequestGrammars | None:
    """The grammars that outputs follow, by their numbers.

    Raises:
        RecordingError: a grammar of which nothing says how long it takes to compile.
    """
    grammar = np.array([0 if row.grammar is None else row.grammar for row in recording.requests], np.int32) - 1
    if grammar.max() < 0:
        return None
    structured = recording.settings.structured
    if structured is None or grammar.max() >= len(structured.compile_s):
        raise recording.error("requests", f"config.structured.compile_s has no entry of grammar {grammar.max() + 1}")
    names = tuple(str(number) for number in range(1, len(structured.compile_s) + 1))
    return RequestGrammars(names, np.array(structured.compile_s), grammar)


def declared_limit(recording: EngineRecording, row: RequestRow) -> int:
    """A request's declared output limit, at most what the pool holds beside its prompt.

    vLLM's server would refuse a longer one, as its ``max_model_len`` fits into the pool. SGLang's scheduler clips it
    (``init_req_max_new_tokens``), from 0.5.21 on to whole pages.
    """
    if row.max_output_tokens is None:
        return row.output_tokens
    settings = recording.settings
    if isinstance(settings, VllmSettings):
        blocks = settings.num_blocks - 1
        if settings.hybrid_window:
            blocks -= 1  # A window has a block at least.
        pool = settings.max_model_len if settings.sliding_window else blocks * settings.block_tokens
        most = pool - row.input_tokens + 1
    else:
        page = settings.block_tokens
        pool = settings.max_total_tokens // page * page
        most = pool - 2 - row.input_tokens
        if rules_in_force("sglang", recording.version)["clips_to_pages"]:
            most = min(most, pool - 1 - page - -(-row.input_tokens // page) * page)
    return max(row.output_tokens, min(row.max_output_tokens, most))


def trace_of(
    requests: Requests,
    block_tokens: int,
    name: str,
    priority: np.ndarray | None = None,
    max_output_tokens: list[int] | None = None,
    adapters: RequestAdapters | None = None,
    grammars: RequestGrammars | None = None,
) -> CompiledTrace:
    """Requests with independent arrivals that share the blocks of equal ids, compiled.

    Args:
        requests: with ids of their blocks.
        block_tokens: tokens of a block.
        name: of the trace.
        priority: shape (N,), from 0, lower first; all alike where None.
        max_output_tokens: declared limits; the outputs' lengths where None.
        adapters: that they ask for.
        grammars: that their outputs follow.
    """
    shares_with, shared_tokens = requests.share_blocks(block_tokens)
    trace = make_trace(
        arrival_s=requests.arrival_s,
        input_tokens=requests.input_tokens,
        output_tokens=requests.output_tokens,
        max_output_tokens=max_output_tokens,
        request_ids=requests.request_ids,
        priority=priority,
        shares_with=shares_with,
        shared_tokens=shared_tokens,
        block_tokens=block_tokens,
        adapters=adapters,
        grammars=grammars,
    )
    return compile_trace(trace, name)
