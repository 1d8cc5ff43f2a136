"""Campaigns of measured runs: which one a row belongs to, its engine's version, and the form of its conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.validate.silicon.clients import KEEPS_CONNECTIONS, NEW_CONNECTIONS, Client
from hisearch.validate.silicon.rows import UNKNOWN_VERSION, SiliconRow

#: (input, output) lengths of InferenceMAX.
#: Ranks of a worker within one host, on the machines of the campaigns.
HOST_RANKS = 8
INFERENCEMAX_LENGTHS = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})
INFERENCEMAX, FIXED = "inferencemax", "fixed"
#: The GPU whose scripts of InferenceMAX differ from those of the others.
H200 = "h200_sxm"
#: TensorRT-LLM in containers that rows name by their Dynamo version: its release candidate 1.2.0rc6, in post-releases 1
#: to 3 (docs.nvidia.com/dynamo/getting-started/support-matrix, v0.8.1.post1 to post3). All use times of post2: no run
#: of post1 was fitted, and those of post3 made several tokens a step (``docs/accuracy-details.md``).
DYNAMO_TRTLLM = dict.fromkeys(("0.8.1.post1", "0.8.1.post2", "0.8.1.post3"), "1.2.0rc6.post2")
#: Releases of the same time as unnamed builds. SGLang's nightly builds in these runs are of February to April 2026.
#: InferenceMAX's runs that state no version are of its first months (TensorRT-LLM's image in ``nvidia-master.yaml`` of
#: October 2025: release 1.1.0rc2.post2).
NIGHTLY_SGLANG, FIRST_SGLANG, FIRST_TRTLLM = "0.5.10", "0.5.3", "1.1.0rc2"
#: Minor version of vLLM 0 from which scheduling is asynchronous by default (its release notes); before, the scheduler
#: waits for each step unless ``--async-scheduling`` is given.
ASYNC_SINCE = 14
#: Label of a version whose schedule does not overlap with the device, unlike other runs of the version.
SERIAL = "serial"


@dataclass(frozen=True)
class Conditions:
    """Conditions of a run.

    input_share, output_share: lengths are drawn uniformly from this share of the nominal one up to it.
    retokenised: tokens that the server reads in a prompt for each one that the client counted.
    requests_per_slot: requests that each of the ``concurrency`` slots sends, one after another.
    kv_dtype: format of the KV cache.
    state_dtype: of linear attention's states (SGLang ``--mamba-ssm-dtype``); None: the model's.
    client: what it adds to the server's front end.
    pool_tokens: most KV of a scheduler, whatever memory is left (SGLang ``--max-total-tokens``); None: no limit.
    """

    campaign: str
    engine: EngineSpec
    kv_dtype: DType
    input_share: float = 1.0
    output_share: float = 1.0
    requests_per_slot: int = 10
    pool_tokens: int | None = None
    retokenised: float = 1.0
    state_dtype: Literal["fp32", "bf16"] | None = None
    client: Client = KEEPS_CONNECTIONS

    @property
    def draft_tokens(self) -> int:
        """Tokens drafted in a step for every sequence; 0: none."""
        return 0 if self.engine.speculation is None else self.engine.speculation.draft_tokens

    def prompt_tokens(self, row: SiliconRow) -> int:
        """Tokens of the longest prompt of ``row`` as the server reads it."""
        return round(self.retokenised * row.input_tokens)


def drafting(draft_tokens: int) -> SpeculationSpec | None:
    """Multi-token prediction, accepted as the catalogue's curve of the model says.

    The rows do not state it. Their prompts are random tokens in the model's chat template, of which about as many are
    accepted as of MT-Bench's (InferenceX, pull request 649).
    """
    return SpeculationSpec(method="mtp", draft_tokens=draft_tokens) if draft_tokens else None


def engine_version(row: SiliconRow) -> str:
    """Version of the row's engine, also if the row names that of Dynamo."""
    return DYNAMO_TRTLLM.get(row.version, row.version) if row.backend == "trtllm" else row.version


def kernels_version(row: SiliconRow) -> str:
    """Version of the engine whose kernels the row had, also if the row names a nightly build or none."""
    if row.backend == "sglang" and row.version.startswith("nightly-dev"):
        return NIGHTLY_SGLANG
    if row.backend == "sglang" and row.version == UNKNOWN_VERSION:
        return FIRST_SGLANG
    if row.backend == "trtllm" and row.version == UNKNOWN_VERSION:
        return FIRST_TRTLLM
    return engine_version(row)


def campaign_of(row: SiliconRow) -> str:
    """The campaign of ``row``: of its column, else recognised by its lengths and columns.

    InferenceMAX's rows have its lengths and state attention's data parallelism; other campaigns leave it out.
    """
    if row.campaign:
        return row.campaign
    column = "attention_dp" if row.mode == "agg" else "decode_attention_dp"
    stated = row.cells.get(column, "") != ""
    return INFERENCEMAX if stated and (row.input_tokens, row.output_tokens) in INFERENCEMAX_LENGTHS else FIXED


def vllm_before(row: SiliconRow, minor: int) -> bool:
    """Whether the row's version is of vLLM before 0.``minor``."""
    release = re.match(r"0\.(\d+)(\.|$)", row.version)
    return row.backend == "vllm" and release is not None and int(release[1]) < minor


def engine_of(
    row: SiliconRow,
    *,
    campaign: str = INFERENCEMAX,
    chunk_tokens: int,
    most_running: int,
    memory_fraction: float = 0.9,
    max_prefill_tokens: int = 16384,
    receive_interval: int = 1,
    stream_interval: int = 1,
    api_servers: int | None = None,
    fused_all_reduce: bool = False,
    overlap: bool = True,
    draft_tokens: int = 0,
    waits: Mapping[str, Any] = {},
) -> EngineSpec:
    """The engine without prefix caching (prompts are random); the batch is bounded by one attention group's requests.

    waits: settings by which TensorRT-LLM holds prompts back. api_servers: as the script has it. Workers of several
    hosts stood behind other front ends, Dynamo's as a rule: one for each rank is assumed.

    No script of either campaign sets TensorRT-LLM's ``enable_chunked_prefill``, which is off by default.
    """
    values = {
        "name": row.backend,
        # Of the others by the newest rules.
        "version": kernels_version(row) if row.backend == "sglang" else "",
        "max_running_requests": min(in_flight(row), most_running),
        "chunk_tokens": chunk_tokens,
        "chunked_prefill": row.backend != "trtllm",
        "memory_fraction": memory_fraction,
        "max_prefill_tokens": max_prefill_tokens,
        "prefix_caching": False,
        "receive_interval": receive_interval,
        "stream_interval": stream_interval,
        "api_servers": row.parallelism.ranks if row.parallelism.ranks > HOST_RANKS else api_servers,
        "fused_all_reduce": None if row.backend == "trtllm" else fused_all_reduce,
        # The campaigns' clients set a temperature of 0.
        "top_p": False,
        "overlap": overlap and not (campaign == FIXED and vllm_before(row, ASYNC_SINCE)),
        **waits,
    }
    return EngineSpec.model_validate(values).model_copy(update={"speculation": drafting(draft_tokens)})


def in_flight(row: SiliconRow) -> int:
    """Most requests of one attention group."""
    return -(-row.concurrency // row.parallelism.attention_data)


def short(row: SiliconRow) -> bool:
    """Whether prompts and outputs have 1,024 tokens."""
    return (row.input_tokens, row.output_tokens) == (1024, 1024)


def burst(engine: EngineSpec, kv_dtype: DType) -> Conditions:
    """Conditions of InferenceMAX's client: lengths of 0.8 to 1 times the nominal one."""
    return Conditions(INFERENCEMAX, engine, kv_dtype, input_share=0.8, output_share=0.8, client=NEW_CONNECTIONS)
