"""What SGLang's scheduler decides: its own classes on a virtual clock, with a forward pass that only takes time.

``standins`` replaces what needs a GPU. ``timeline`` is the clock and the record. ``scheduler`` with ``before_0_5_10``
and ``from_0_5_23`` set the engine's scheduler up. ``copies``, ``storage``, ``virtual_threads`` and ``hicache_*`` are
the laws of the host tier and of storage, ``drafts`` those of drafted tokens. ``windows`` are the pools of sliding
windows, ``states`` the pool of states of linear attention, ``adapters`` the slots of LoRA adapters, ``grammars`` the
manager of grammars.
``random_cases`` draws cases, ``run`` takes one through the engine.

Imports modules of ``record`` and the engine's.
"""

from __future__ import annotations

import random
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from typing import Any

from hisearch.record.cases import Case, EngineError, Setting
from hisearch.record.sglang.adapters import random_adapter_case
from hisearch.record.sglang.drafts import random_draft_case
from hisearch.record.sglang.grammars import random_grammar_case
from hisearch.record.sglang.random_cases import draw_case, random_context_case
from hisearch.record.sglang.states import STRATEGIES, random_state_case
from hisearch.record.sglang.windows import random_window_case
from hisearch.record.workload import Row

#: Versions whose scheduler this package can set up.
VERSIONS = ("0.5.9", "0.5.23")
#: Tokens of an entry of ``block_ids``.
BLOCK_KEY = "block_ids_size"

_INTEGER, _FLAG, _NUMBER = ((int,), "an integer"), ((bool,), "true or false"), ((int, float), "a number")
_POLICIES = ("fcfs", "lpm", "lof", "dfs-weight")
_EVICTIONS = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")
#: Server arguments by their own names.
SETTINGS = {
    setting.key: setting
    for setting in (
        Setting("page_size", *_INTEGER, required=True, least=1),
        Setting("dcp_size", *_INTEGER, default=1, least=1),
        Setting("chunked_prefill_size", (int,), "an integer, -1 for no chunks", required=True, least=-1),
        Setting("max_prefill_tokens", *_INTEGER, required=True, least=1),
        Setting("max_running_requests", *_INTEGER, required=True, least=1),
        Setting("max_total_tokens", *_INTEGER, required=True, least=1),
        Setting(BLOCK_KEY, (int,), "page_size, or 16 where that is 1", required=True, least=1),
        Setting("schedule_policy", (str,), f"one of {', '.join(_POLICIES)}", default="fcfs", choices=_POLICIES),
        Setting("schedule_conservativeness", *_NUMBER, default=1.0),
        Setting("radix_eviction_policy", (str,), f"one of {', '.join(_EVICTIONS)}", default="lru", choices=_EVICTIONS),
        Setting("disable_radix_cache", *_FLAG, default=False),
        Setting("enable_mixed_chunk", *_FLAG, default=False),
        Setting("disable_overlap_schedule", *_FLAG, default=True),
        Setting("enable_priority_scheduling", *_FLAG, default=False),
        Setting("schedule_low_priority_values_first", *_FLAG, default=False),
        Setting("priority_scheduling_preemption_threshold", *_INTEGER, default=10),
        Setting("prefill_max_requests", *_INTEGER, default=None, least=1),
        Setting("scheduler_recv_interval", *_INTEGER, default=1, least=1),
        Setting("sliding_window_size", *_INTEGER, default=None, least=1),
        Setting("swa_max_total_num_tokens", *_INTEGER, default=None, least=1),
        Setting("max_mamba_cache_size", *_INTEGER, default=None, least=1),
        Setting(
            "mamba_radix_cache_strategy", (str,), f"one of {', '.join(STRATEGIES)}", default="auto", choices=STRATEGIES
        ),
        Setting("mamba_track_interval", *_INTEGER, default=None, least=1),
        Setting("mamba_chunk_size", *_INTEGER, default=None, least=1),
        Setting("mamba_max_states_per_path", *_INTEGER, default=-1, least=-1),
        Setting("speculation", (dict,), "a mapping: method, draft_tokens, accepted, seed", default=None),
        Setting("lora", (dict,), "a mapping of adapters' arguments and laws", default=None),
        Setting("structured", (dict,), "a mapping of grammars' laws", default=None),
        Setting("hicache", (dict,), "a mapping of the host tier's arguments and laws", default=None),
    )
}


def version() -> str:
    """The installed SGLang.

    Raises:
        EngineError: none, or of a version that is not known here.
    """
    try:
        release = installed_version("sglang")
    except PackageNotFoundError:
        raise EngineError(
            "sglang is not installed in this environment: run hisearch.record with the Python that has the engine"
        ) from None
    if release not in VERSIONS:
        raise EngineError(f"sglang {release}: only {' and '.join(VERSIONS)} can be recorded")
    return release


#: What a random case may have beside the settings of every case.
FEATURES = {
    "adapters": random_adapter_case,
    "context": random_context_case,
    "drafts": random_draft_case,
    "grammars": random_grammar_case,
    "states": random_state_case,
    "windows": random_window_case,
}


def draw(rng: random.Random, feature: str | None = None) -> tuple[dict[str, Any], list[Row], int]:
    """A random case: settings, requests, tokens of an entry of ``block_ids``; ``feature``: of ``FEATURES``, or None."""
    return (FEATURES[feature] if feature else draw_case)(rng, version())


def record(case: Case) -> dict[str, Any]:
    """Take a case through the engine.

    Returns:
        The recording.

    Raises:
        EngineError: the engine is missing or cannot do what the case asks for.
    """
    from hisearch.record.sglang.run import run_case

    return run_case(version(), case.settings, case.requests)
