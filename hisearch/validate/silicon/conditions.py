"""Conditions of a measured run: the client's requests and the server's flags.

InferenceMAX (SemiAnalysis) publishes its scripts: ``benchmark_serving.py`` sends ten requests for every one in flight,
draws each length uniformly from 0.8 to 1 times the nominal one, and warms up before it starts the clock, so that the
first burst counts. Each script states the server's flags; ``_inferencemax`` repeats those that change the schedule.
Source: github SemiAnalysisAI/InferenceX, ``benchmarks/single_node/*.sh`` and ``benchmarks/benchmark_lib.sh``, and the
earlier ``benchmarks/70b_*``, ``dsr1_*`` and ``gptoss_*`` scripts of InferenceMAX.

Other runs state nothing. AIConfigurator's generator has templates for their versions, and is assumed to
have written their flags (``_fixed``). Exact lengths and ten requests for every one in flight are assumed.
Source: github ai-dynamo/aiconfigurator, ``src/aiconfigurator/generator/rule_plugin/benchmark/*.rule`` and
``generator/config/backend_templates``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisearch.latency.speculation import Speculation
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.validate.silicon.rows import UNKNOWN_VERSION, SiliconRow

#: (input, output) lengths of InferenceMAX.
INFERENCEMAX_LENGTHS = frozenset({(1024, 1024), (1024, 8192), (8192, 1024)})
INFERENCEMAX, FIXED = "inferencemax", "fixed"
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
#: Minor version of vLLM 0 from which all-reduce and norm are fused by default.
FUSES_SINCE = 16
#: TensorRT-LLM version only of InferenceMAX's scripts with multi-token prediction for DeepSeek-R1.
DRAFTING = "1.2.0rc6.post3"
#: Label of a version whose schedule does not overlap with the device, unlike other runs of the version.
SERIAL = "serial"
#: Share of drafted tokens accepted when all before them were, one for all models and engines. The rows do not
#: state it; it is the best of 0.6, 0.7 and 0.8 on the rows that draft, whose TPOT is therefore fitted, not a test.
ACCEPTED = 0.6
#: The GPU whose scripts differ from those of the others.
H200 = "h200_sxm"
#: Tokens that the campaign adds to prompt and output for a model's longest sequence.
LONGEST_SPARE = 200
#: Steps for which TensorRT-LLM's attention groups wait for each other's prompts by default
#: (``AttentionDpConfig.timeout_iters``).
BALANCE_STEPS = 50
#: Tokens that AIConfigurator's generator adds to a prompt's and the batch's for the budget of a step.
SPARE_TOKENS = 1500


@dataclass(frozen=True)
class Conditions:
    """Conditions of a run.

    input_share, output_share: lengths are drawn uniformly from this share of the nominal one up to it.
    requests_per_slot: requests that each of the ``concurrency`` slots sends, one after another.
    gather_steps: decode steps for which a prompt waits for more (TensorRT-LLM ``batch_wait_timeout_iters``).
    draft_tokens: tokens drafted in a step for every sequence (multi-token prediction); 0: none.
    kv_dtype: format of the KV cache.
    """

    campaign: str
    engine: EngineSpec
    kv_dtype: DType
    input_share: float = 1.0
    output_share: float = 1.0
    requests_per_slot: int = 10
    gather_steps: int = 0
    draft_tokens: int = 0

    @property
    def speculation(self) -> Speculation:
        """Drafted tokens per step and their acceptance."""
        return Speculation(self.draft_tokens, ACCEPTED)


def conditions_of(row: SiliconRow) -> Conditions:
    """Conditions of ``row``: of its ``campaign`` column, else recognised by its lengths and columns.

    Raises:
        ValueError: an unknown campaign.
    """
    campaign = row.campaign or _campaign(row)
    if campaign == INFERENCEMAX:
        return _inferencemax(row)
    if campaign == FIXED:
        return _fixed(row)
    raise ValueError(f"campaign: expected {INFERENCEMAX} or {FIXED}, not '{campaign}'")


def engine_version(row: SiliconRow) -> str:
    """Version of the row's engine, also if the row names that of Dynamo."""
    return DYNAMO_TRTLLM.get(row.version, row.version) if row.backend == "trtllm" else row.version


def host_version(row: SiliconRow) -> str:
    """Version of the engine as the key of its host work, with a label if no work of the host is hidden.

    With drafted tokens SGLang 0.5.9 prepares and ends each step while the device waits: it turns its overlap schedule
    off unless ``SGLANG_ENABLE_SPEC_V2`` is in its environment (``server_args.py``). The script for Qwen3.5 does not set
    it, that for DeepSeek sets it without exporting it.
    """
    version = engine_version(row)
    return f"{version}+{SERIAL}" if row.backend == "sglang" and _sglang_drafts(row) else version


def kernels_version(row: SiliconRow) -> str:
    """Version of the engine whose kernels the row had, also if the row names a nightly build or none."""
    if row.backend == "sglang" and row.version.startswith("nightly-dev"):
        return NIGHTLY_SGLANG
    if row.backend == "sglang" and row.version == UNKNOWN_VERSION:
        return FIRST_SGLANG
    if row.backend == "trtllm" and row.version == UNKNOWN_VERSION:
        return FIRST_TRTLLM
    return engine_version(row)


def _campaign(row: SiliconRow) -> str:
    """InferenceMAX's rows have its lengths and state attention's data parallelism; other campaigns leave it out."""
    column = "attention_dp" if row.mode == "agg" else "decode_attention_dp"
    stated = row.cells.get(column, "") != ""
    return INFERENCEMAX if stated and (row.input_tokens, row.output_tokens) in INFERENCEMAX_LENGTHS else FIXED


def _fixed(row: SiliconRow) -> Conditions:
    """Flags as AIConfigurator's generator writes them; the batch is the number of requests in flight.

    A step of vLLM and TensorRT-LLM holds ``batch + input_tokens + SPARE_TOKENS`` tokens (``agg max_num_tokens``), one
    prompt or two. SGLang keeps its defaults: the generator's ``max_prefill_tokens`` of ``input_tokens + SPARE_TOKENS``
    leaves more errors on its runs.
    """
    quantised = row.precision in ("fp8", "fp4")
    most_running = 1024 if row.backend == "vllm" else 2048
    budget = min(_in_flight(row), most_running) + row.input_tokens + SPARE_TOKENS
    return Conditions(
        FIXED,
        _engine(
            row,
            campaign=FIXED,
            chunk_tokens=8192 if row.backend == "sglang" else budget,
            most_running=most_running,
            memory_fraction={"vllm": 0.9, "sglang": 0.84, "trtllm": 0.8}[row.backend],
        ),
        kv_dtype="fp8" if quantised and row.backend == "trtllm" else "bf16",
    )


def _inferencemax(row: SiliconRow) -> Conditions:
    build = {"vllm": _inferencemax_vllm, "sglang": _inferencemax_sglang, "trtllm": _inferencemax_trtllm}[row.backend]
    return build(row)


def _inferencemax_vllm(row: SiliconRow) -> Conditions:
    """KV is fp8 for Llama and, on Blackwell, for gpt-oss and checkpoints in fp8 or fp4; else bf16."""
    model = row.model.lower()
    if "minimax" in model:
        return _inferencemax_minimax(row)
    narrow = "llama" in model or (row.system.startswith("b") and row.precision in ("fp8", "fp4"))
    engine = _engine(row, chunk_tokens=8192, most_running=1024, fused_all_reduce=_vllm_fuses(row))
    return _burst(engine, "fp8" if narrow else "bf16")


def _vllm_fuses(row: SiliconRow) -> bool:
    """Whether vLLM fuses all-reduce and norm, on Hopper and Blackwell.

    The scripts for Llama, for Kimi and gpt-oss on a B200 and for MiniMax-M2.5 in fp4 set it
    (``enable_fi_allreduce_fusion``, later ``fuse_allreduce_rms``); since 0.16 it is vLLM's default (github
    vllm-project/vllm, issues 34458 and 35426, on regressions from it).
    """
    set_by_script = row.version == UNKNOWN_VERSION or row.system.startswith("b")
    return set_by_script or not _vllm_before(row, FUSES_SINCE)


def _inferencemax_minimax(row: SiliconRow) -> Conditions:
    """The scripts of MiniMax-M2.5: two prompts a step on Blackwell since vLLM 0.19.0.

    ``minimaxm2.5_fp8_b200.sh`` of 0.17.0 left KV in bf16 and 0.95 of the memory to the engine, and steps at its default
    of 8,192 tokens. Since pull request 947 (0.19.0) KV is fp8 and ``--max-num-batched-tokens`` is twice the prompt.
    ``minimaxm2.5_fp4_b200.sh`` sets both in its 0.19.0 version, and neither in the nightly build's, whose checkpoint
    states fp8. ``minimaxm2.5_fp8_h100.sh`` sets at most 256 requests and leaves the rest to the engine.
    """
    if not row.system.startswith("b"):
        return _burst(_engine(row, chunk_tokens=8192, most_running=256, fused_all_reduce=True), "bf16")
    if _first_minimax(row):
        engine = _engine(row, chunk_tokens=8192, most_running=1024, memory_fraction=0.95, fused_all_reduce=True)
        return _burst(engine, "bf16")
    chunk_tokens = 8192 if row.version.startswith("nightly") else 2 * row.input_tokens
    return _burst(_engine(row, chunk_tokens=chunk_tokens, most_running=1024, fused_all_reduce=True), "fp8")


def as_it_ran(row: SiliconRow) -> SiliconRow:
    """``row`` with the split that its script actually ran.

    The first script for MiniMax-M2.5 in fp8 on a B200 spread the experts over the ranks in every run: it tested
    ``"$EP_SIZE" -ge 1`` (fixed by pull request 947).
    """
    split = row.parallelism
    if not _first_minimax(row) or split.expert == split.tensor:
        return row
    return replace(row, parallelism=split._replace(expert=split.tensor))


def _first_minimax(row: SiliconRow) -> bool:
    """Rows of the first script for MiniMax-M2.5 in fp8 on a B200 (vLLM 0.17.0, before 0.19.0)."""
    fp8 = "minimax" in row.model.lower() and row.precision == "fp8" and row.system.startswith("b")
    return fp8 and _vllm_before(row, 19)


def _inferencemax_sglang(row: SiliconRow) -> Conditions:
    """DeepSeek and Qwen3.5: receive interval of 10 decode steps, of 30 from 16 requests in flight on.

    Qwen3.5 in fp4 always uses 30, and prompt chunks of 32,768 tokens (``qwen3.5_fp4_b200.sh``). Qwen3.5 in fp8 drafts
    three tokens on four ranks with tensor-parallel experts (``qwen3.5_fp8_b200_mtp.sh``). DeepSeek drafts two with more
    than 64 in flight (``_drafts_beyond``). A drafting step counts as as many steps as it makes tokens. All pass
    ``--enable-flashinfer-allreduce-fusion`` except Qwen3.5 in fp4, and in fp8 without drafted tokens. GLM-5 bounds the
    batch by the requests in flight, and in fp8 leaves the interval to the engine (``glm5_fp8_b200.sh``,
    ``glm5_fp4_b200.sh``).
    """
    if row.system == H200:
        return _inferencemax_sglang_h200(row)
    if "glm-5" in row.model.lower():
        fp4 = row.precision == "fp4"
        interval = 10 if fp4 and row.parallelism.attention_data == 1 else 1
        engine = _engine(
            row, chunk_tokens=32768, most_running=row.concurrency, memory_fraction=0.9 if fp4 else 0.85,
            max_prefill_tokens=32768, receive_interval=interval, fused_all_reduce=True,
        )  # fmt: skip
        return _burst(engine, "fp8")
    fp4, four, qwen = row.precision == "fp4", row.parallelism.ranks == 4, "qwen3.5" in row.model.lower()
    interval = 30 if row.concurrency >= 16 or (qwen and fp4) else 10
    drafts = _sglang_drafts(row)
    if qwen and fp4:
        limits = {
            "chunk_tokens": 32768, "max_prefill_tokens": 32768, "most_running": row.concurrency,
            "memory_fraction": 0.85,
        }  # fmt: skip
    elif fp4:
        limits = {"chunk_tokens": 16384, "most_running": 256, "memory_fraction": 0.85}
    elif four and "deepseek" in row.model.lower():
        limits = {"chunk_tokens": 8192, "most_running": 32, "memory_fraction": 0.95, "max_prefill_tokens": 8192}
        interval = 10
    elif _drafts_beyond(row):
        limits = {"chunk_tokens": 16384, "most_running": 512, "memory_fraction": 0.82}
    else:
        limits = {"chunk_tokens": 32768, "most_running": 256, "memory_fraction": 0.82, "max_prefill_tokens": 32768}
    interval = round(interval * Speculation(drafts, ACCEPTED).tokens_per_step)
    if row.parallelism.attention_data > 1:
        interval = 1  # SGLang 0.5.9 refuses an interval with attention groups.
    unfused = qwen and not drafts and row.precision != "bf16"
    engine = _engine(row, **limits, receive_interval=interval, fused_all_reduce=not unfused, overlap=not drafts)  # type: ignore[arg-type]
    return _burst(engine, "fp8", draft_tokens=drafts)


def _inferencemax_sglang_h200(row: SiliconRow) -> Conditions:
    """The engine's default interval; DeepSeek with KV in 16 bits (``dsr1_fp8_h200.sh``, ``qwen3.5_fp8_h200.sh``)."""
    if "qwen3.5" in row.model.lower():
        engine = _engine(row, chunk_tokens=16384, most_running=128, memory_fraction=0.8, fused_all_reduce=True)
        return _burst(engine, "fp8")
    most = 512 if _short(row) else 256
    engine = _engine(row, chunk_tokens=32768, most_running=most, memory_fraction=0.82, max_prefill_tokens=32768)
    return _burst(engine, "bf16")


def _sglang_drafts(row: SiliconRow) -> int:
    """Tokens that a run of InferenceMAX under SGLang drafts in a step."""
    if (row.campaign or _campaign(row)) != INFERENCEMAX:
        return 0
    return 3 if _drafts_on_four(row) else 2 if _drafts_beyond(row) else 0


def _drafts_beyond(row: SiliconRow) -> bool:
    """DeepSeek in fp8 on eight ranks: up to 64 requests in flight without drafted tokens, up to 512 with them.

    ``nvidia-master.yaml``, ``dsr1-fp8-b200-sglang`` and ``dsr1-fp8-b200-sglang-mtp``; ``dsr1_fp8_b200_mtp.sh``: two
    steps of the drafting layer, three tokens checked. Up to 64 the columns do not distinguish the two.
    """
    deepseek = "deepseek" in row.model.lower() and row.precision == "fp8"
    return deepseek and row.version == "0.5.9" and row.concurrency > 64


def _drafts_on_four(row: SiliconRow) -> bool:
    split = row.parallelism
    qwen = "qwen3.5" in row.model.lower() and row.precision == "fp8"
    return qwen and row.version == "0.5.9" and split.ranks == split.tensor == 4 and split.expert == 1


def _inferencemax_trtllm(row: SiliconRow) -> Conditions:
    """Token budgets by model; Llama at 1k/1k on fewer than 8 ranks, and DeepSeek in fp8, gather prompts.

    Attention groups wait until each has a prompt, up to 60 steps (``attention_dp_config.timeout_iters``);
    those of gpt-oss, whose script uses the default, up to ``BALANCE_STEPS``.
    Of DeepSeek, ``DRAFTING`` is the image of the scripts that draft tokens (``dsr1_fp4_b200_trt_mtp.sh``,
    ``dsr1_fp8_b200_trt_mtp.sh``; perf-changelog.yaml, pull requests 632 and 642) and gather no prompts. Rows of it that
    state no version are of the first scripts, which gave KV 0.9 of the memory (``dsr1_fp4_b200_trt_slurm.sh`` of
    October 2025; ``dsr1_b200_trt_slurm.sh`` states nothing, and the engine's default is the same).
    """
    groups, short = row.parallelism.attention_data > 1, _short(row)
    if row.system == H200:
        return _inferencemax_trtllm_h200(row)
    if "llama" in row.model.lower():
        engine = _engine(row, chunk_tokens=16384, most_running=2048)
        return _burst(engine, "fp8", gather_steps=20 if short and row.parallelism.ranks < 8 else 0)
    if "gpt-oss" in row.model.lower():
        engine = _engine(row, chunk_tokens=20000, most_running=512, memory_fraction=0.85)
        return _burst(engine, "fp8", gather_steps=BALANCE_STEPS if groups else 0)
    budget = (row.concurrency + row.input_tokens + 127) // 64 * 64
    gather = 40 if row.precision == "fp8" and short and row.concurrency >= 64 else 0
    drafts = 0
    if row.version == DRAFTING:
        drafts, gather = 1 if groups else 3, 0
    if groups:
        gather = 60
    memory_fraction = 0.9 if row.version == UNKNOWN_VERSION else 0.8
    engine = _engine(row, chunk_tokens=max(budget, 8192), most_running=2048, memory_fraction=memory_fraction)
    return _burst(engine, "fp8", gather_steps=gather, draft_tokens=drafts)


def _inferencemax_trtllm_h200(row: SiliconRow) -> Conditions:
    """``70b_fp8_h200_trt_slurm.sh``, ``gptoss_fp4_h200_trt.sh`` and ``dsr1_fp8_h200_trt.sh``.

    Llama's steps hold the model's longest sequence; gpt-oss keeps KV in 16 bits; DeepSeek gathers no prompts.
    """
    groups = row.parallelism.attention_data > 1
    if "llama" in row.model.lower():
        engine = _engine(row, chunk_tokens=row.tokens + LONGEST_SPARE, most_running=2048)
        return _burst(engine, "fp8", gather_steps=20 if _short(row) and row.parallelism.ranks < 8 else 0)
    if "gpt-oss" in row.model.lower():
        engine = _engine(row, chunk_tokens=20000, most_running=row.concurrency, memory_fraction=0.85)
        return _burst(engine, "bf16", gather_steps=BALANCE_STEPS if groups else 0)
    budget = max((row.concurrency + row.input_tokens + 127) // 64 * 64, 8192)
    engine = _engine(row, chunk_tokens=budget, most_running=2048, memory_fraction=0.75)
    return _burst(engine, "fp8", gather_steps=60 if groups else 0)


def _short(row: SiliconRow) -> bool:
    """Whether prompts and outputs have 1,024 tokens."""
    return (row.input_tokens, row.output_tokens) == (1024, 1024)


def _burst(engine: EngineSpec, kv_dtype: DType, *, gather_steps: int = 0, draft_tokens: int = 0) -> Conditions:
    return Conditions(
        INFERENCEMAX,
        engine,
        kv_dtype,
        input_share=0.8,
        output_share=0.8,
        gather_steps=gather_steps,
        draft_tokens=draft_tokens,
    )


def _vllm_before(row: SiliconRow, minor: int) -> bool:
    """Whether the row's version is of vLLM before 0.``minor``."""
    release = row.version.split(".")
    return (
        row.backend == "vllm"
        and release[0] == "0"
        and len(release) > 1
        and release[1].isdigit()
        and int(release[1]) < minor
    )


def _engine(
    row: SiliconRow,
    *,
    campaign: str = INFERENCEMAX,
    chunk_tokens: int,
    most_running: int,
    memory_fraction: float = 0.9,
    max_prefill_tokens: int = 16384,
    receive_interval: int = 1,
    fused_all_reduce: bool = False,
    overlap: bool = True,
) -> EngineSpec:
    """The engine without prefix caching (prompts are random); the batch is bounded by one attention group's requests.

    No script of either campaign sets TensorRT-LLM's ``enable_chunked_prefill``, which is off by default.
    """
    values = {
        "name": row.backend,
        "max_running_requests": min(_in_flight(row), most_running),
        "chunk_tokens": chunk_tokens,
        "chunked_prefill": row.backend != "trtllm",
        "memory_fraction": memory_fraction,
        "max_prefill_tokens": max_prefill_tokens,
        "prefix_caching": False,
        "receive_interval": receive_interval,
        "fused_all_reduce": None if row.backend == "trtllm" else fused_all_reduce,
        # The campaigns' clients set a temperature of 0.
        "top_p": False,
        "overlap": overlap and not (campaign == FIXED and _vllm_before(row, ASYNC_SINCE)),
    }
    return EngineSpec.model_validate(values)


def _in_flight(row: SiliconRow) -> int:
    """Most requests of one attention group."""
    return -(-row.concurrency // row.parallelism.attention_data)
