"""Conditions of a measured run: the client's requests and the server's flags.

Those of InferenceMAX's runs are in ``inferencemax``.

Other runs state nothing. AIConfigurator's generator has templates for their versions, and is assumed to
have written their flags (``_fixed``). Exact lengths and ten requests for every one in flight are assumed.
Source: github ai-dynamo/aiconfigurator, ``src/aiconfigurator/generator/rule_plugin/benchmark/*.rule`` and
``generator/config/backend_templates``.
"""

from __future__ import annotations

from hisearch.validate.silicon.campaigns import (
    FIXED,
    INFERENCEMAX,
    SERIAL,
    Conditions,
    campaign_of,
    engine_of,
    engine_version,
    in_flight,
)
from hisearch.validate.silicon.inferencemax import inferencemax
from hisearch.validate.silicon.inferencemax_sglang import sglang_drafts
from hisearch.validate.silicon.rows import SiliconRow

#: Tokens that AIConfigurator's generator adds to a prompt's and the batch's for the budget of a step.
SPARE_TOKENS = 1500


def conditions_of(row: SiliconRow) -> Conditions:
    """Conditions of ``row``: of its ``campaign`` column, else recognised by its lengths and columns.

    Raises:
        ValueError: an unknown campaign.
    """
    campaign = campaign_of(row)
    if campaign == INFERENCEMAX:
        return inferencemax(row)
    if campaign == FIXED:
        return _fixed(row)
    raise ValueError(f"campaign: expected {INFERENCEMAX} or {FIXED}, not '{campaign}'")


def host_version(row: SiliconRow) -> str:
    """Version of the engine as the key of its host work, with a label if no work of the host is hidden.

    With drafted tokens SGLang 0.5.9 prepares and ends each step while the device waits: it turns its overlap schedule
    off unless ``SGLANG_ENABLE_SPEC_V2`` is in its environment (``server_args.py``). The script for Qwen3.5 does not set
    it, that for DeepSeek sets it without exporting it.
    """
    version = engine_version(row)
    return f"{version}+{SERIAL}" if row.backend == "sglang" and sglang_drafts(row) else version


def _fixed(row: SiliconRow) -> Conditions:
    """Flags as AIConfigurator's generator writes them; the batch is the number of requests in flight.

    A step of vLLM and TensorRT-LLM holds ``batch + input_tokens + SPARE_TOKENS`` tokens (``agg max_num_tokens``), one
    prompt or two. SGLang keeps its defaults: the generator's ``max_prefill_tokens`` of ``input_tokens + SPARE_TOKENS``
    leaves more errors on its runs.
    """
    quantised = row.precision in ("fp8", "fp4")
    most_running = 1024 if row.backend == "vllm" else 2048
    budget = min(in_flight(row), most_running) + row.input_tokens + SPARE_TOKENS
    return Conditions(
        FIXED,
        engine_of(
            row,
            campaign=FIXED,
            chunk_tokens=8192 if row.backend == "sglang" else budget,
            most_running=most_running,
            memory_fraction={"vllm": 0.9, "sglang": 0.84, "trtllm": 0.8}[row.backend],
        ),
        kv_dtype="fp8" if quantised and row.backend == "trtllm" else "bf16",
    )
