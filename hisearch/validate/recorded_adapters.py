"""LoRA adapters and grammars of recordings, as plans have them."""

from __future__ import annotations

from typing import Any

from hisearch.simulate.plans.grammar_plan import GrammarPlan
from hisearch.simulate.plans.lora_plan import LoraPlan
from hisearch.validate.recorded_settings import SglangSettings, VllmSettings


def of_vllm(settings: VllmSettings) -> dict[str, Any]:
    """Arguments of a plan for the adapters of a recording of vLLM."""
    lora = settings.lora
    if lora is None:
        return {}
    laws: dict[str, Any] = lora.laws
    copies = lora.max_cpu_loras or lora.max_loras
    return {"lora": LoraPlan(lora.max_loras, copies=copies, read_s=lora.read_s, **laws)}


def of_sglang(settings: SglangSettings) -> dict[str, Any]:
    """Arguments of a plan for the adapters of a recording of SGLang."""
    lora = settings.lora
    if lora is None:
        return {}
    laws: dict[str, Any] = lora.laws
    plan = LoraPlan(
        lora.max_loras_per_batch,
        base_slot=True,
        fifo=lora.lora_eviction_policy == "fifo",
        overlaps=lora.enable_lora_overlap_loading,
        drain_wait_s=lora.lora_drain_wait_threshold,
        **laws,
    )
    return {"lora": plan}


def grammars(settings: VllmSettings | SglangSettings) -> dict[str, Any]:
    """Arguments of a plan for the grammars of a recording."""
    structured = settings.structured
    return {} if structured is None else {"grammars": GrammarPlan(structured.threads, fill_s=structured.sequence_s)}
