"""Readers of aiconfigurator-core's tables, present and former versions, into the columns of ``calibrate.tables``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.tables import COLUMNS, MLA_KEY, MLA_LATENT, MLA_VALUE, Tables
from hisearch.specs.versions import version_key

if TYPE_CHECKING:
    import pandas as pd

#: aiconfigurator's names of formats. No simulated engine setting uses the others.
DTYPES = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4",
}  # fmt: skip

#: Models whose sparse attention aiconfigurator measured -> name in the catalogue. Later GLM-5 share an indexer's choice
#: among layers.
SPARSE_MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "zai-org/GLM-5": "glm-5", "zai-org/GLM-5-FP8": "glm-5",
}  # fmt: skip

#: Its tables of whole attention blocks, by phase.
SPARSE_TABLES = {"prefill": "dsa_context_module", "decode": "dsa_generation_module"}

#: Columns that older tables lack, and the value their rows have.
ABSENT: dict[str, int | str] = {"window_size": 0, "step": 0, "kernel_source": "", "distribution": "balanced"}

#: Engines whose MLA prefill was measured on the latent (3.4 times the arithmetic). The server rebuilds keys and values
#: of every head for prompts instead.
PREFILLS_IN_LATENT_SPACE = frozenset({"sglang"})

#: The two passes that quantise a product's activations to fp8: find the scale, apply it.
QUANTISE_TABLES = ("computescale_perf", "scale_matrix_perf")

#: An engine's own all-reduce.
ALL_REDUCE_TABLE = "custom_allreduce_perf"

#: Kernels of checkpoints that NVIDIA's ModelOpt quantised. Weights that the engine quantises use others.
MODELOPT = "modelopt"

#: Nemotron's experts have no gate: one matrix in where the law has two. Their widths and experts per token.
UNGATED_HIDDEN, UNGATED_TOPK = (2688,), 22

#: Kernel of prompts in linear attention, without the convolution before it.
DELTA_RULE = "chunk_gated_delta_rule"

#: Model whose router is limited to groups of experts (DeepSeek V3): hidden size, experts, experts per token. The
#: collector's synthetic scores tie over groups: most tokens fall on half of the experts (16 tokens on 256 take as long
#: as 8 on 384). Real scores do not tie.
GROUP_LIMITED = (7168, 256, 8)

#: Formats in which that model is published. In others its router was not run.
BLOCK_SCALED = frozenset({"fp8_block", "nvfp4"})

#: Kernels that were given each token's experts or routed that model without groups; kernels that routed every model by
#: groups.
GIVEN_EXPERTS, ALL_BY_GROUPS = "moe_torch_flow_cutlass|moe_torch_flow_triton|deepgemm|marlin", "min_latency"

#: The measured routing skew that stands for real routers.
SKEWED = "power_law_1.2"


def read_aiconfigurator(data: Path, system: str, engine: str) -> Tables:
    """Tables of ``systems/data`` of aiconfigurator-core, for one of its systems and engines.

    Each family comes from the newest version with at least half as many usable rows as the largest version.

    Raises:
        ValueError: the system or the engine has no GEMM table.
    """
    readers = {
        "gemm": ("gemm", "gemm_perf", _gemm),
        "prefill_attention": ("attention", "context_attention_perf", _prefill),
        "decode_attention": ("attention", "generation_attention_perf", _decode),
        "mla_prefill": ("mla", "context_mla_perf", _mla_prefill),
        "mla_decode": ("mla", "generation_mla_perf", _mla_decode),
        "moe": ("moe", "moe_perf", _moe),
        "linear_attention": ("linear_attention", "gdn_perf", _linear),
    }
    frames, sources = {}, {}
    if engine in PREFILLS_IN_LATENT_SPACE:
        del readers["mla_prefill"]
    for name, (family, file, reader) in readers.items():
        versions = [(path, reader(_read(path))) for path in _newest_first(data / system / family / engine, file)]
        most = max((len(frame) for _, frame in versions), default=0)
        for path, frame in versions:
            if most and 2 * len(frame) >= most:
                frames[name] = frame
                sources[name] = f"{system}/{path.parent.relative_to(data / system)}/{path.stem}"
                break
    if "gemm" not in frames:
        raise ValueError(f"{data}: no GEMM table of system {system} and engine {engine}")
    frames["gemm"] = _without_quantise(frames["gemm"], data / system / "quantize" / engine)
    for name, table in (
        ("collectives", read_collectives(data, system, engine)),
        ("sparse_attention", _sparse(data / system / "sparse_attention" / engine)),
    ):
        if table is not None:
            frames[name], sources[name] = table
    return Tables(frames, sources)


def _newest_first(folder: Path, file: str) -> list[Path]:
    """``file`` of every version below ``folder``, newest first; release candidates come before their release."""
    return sorted(folder.glob(f"*/{file}.parquet"), key=lambda path: version_key(path.parent.name), reverse=True)


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    return _with_seconds(pd.read_parquet(path))


def _with_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured rows, in seconds, with the columns that older tables lack."""
    frame["latency_s"] = frame["latency"] * 1e-3
    for column, value in ABSENT.items():
        if column not in frame.columns:
            frame[column] = value
    return frame[frame["latency_s"] > 0].rename(columns={"kernel_source": "source"})


def _dtyped(frame: pd.DataFrame, column: str, name: str) -> pd.DataFrame:
    frame = frame[frame[column].isin(list(DTYPES))]
    return frame.assign(**{name: frame[column].map(DTYPES)})


def _gemm(frame: pd.DataFrame) -> pd.DataFrame:
    return _dtyped(frame, "gemm_dtype", "dtype")[["dtype", "m", "n", "k", "latency_s", "source"]]


def _without_quantise(products: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """fp8 rows of ``products`` without the passes that find and apply the scale of their activations.

    The benchmark multiplies 16-bit activations, so a quantising pass precedes each product. Servers quantise in the
    preceding norm or activation function. Separate tables hold the two passes. Where one was not measured (zero),
    products stay as they are.
    """
    tables = [next(iter(_newest_first(folder, file)), None) for file in QUANTISE_TABLES]
    passes = [_quantise_s(path) for path in tables if path is not None]
    if len(passes) < len(QUANTISE_TABLES) or any(pass_s.median() <= 0.0 for pass_s in passes):
        return products
    seconds = sum(passes[1:], passes[0]).reindex(list(zip(products["m"], products["k"], strict=True))).to_numpy()
    is_fp8 = products["dtype"] == "fp8"
    without = products["latency_s"] - seconds
    kept = products.assign(latency_s=products["latency_s"].where(~is_fp8, without))
    return kept[~is_fp8 | (kept["latency_s"] > 0.0)]


def _quantise_s(path: Path) -> pd.Series[float]:
    """Seconds of one quantising pass by (m, k)."""
    import pandas as pd

    frame = pd.read_parquet(path)
    return frame.groupby(["m", "k"])["latency"].median() * 1e-3


def _prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """Full attention. Where queries were measured in two formats, the rows in the KV cache's format."""
    frame = frame[(frame["window_size"] == 0) & (frame["step"] == 0)]
    same = frame["attn_dtype"] == frame["kv_cache_dtype"]
    wide = ~frame["kv_cache_dtype"].isin(set(frame.loc[same, "kv_cache_dtype"]))
    frame = _dtyped(frame[same | wide], "kv_cache_dtype", "kv_dtype")
    frame = frame.rename(columns={
        "batch_size": "batch", "isl": "new_tokens", "num_heads": "heads", "num_key_value_heads": "kv_heads",
    })  # fmt: skip
    return frame.assign(value_dim=frame["head_dim"])[[*COLUMNS["prefill_attention"], "latency_s", "source"]]


def _decode(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame[frame["window_size"] == 0], "kv_cache_dtype", "kv_dtype")
    frame = frame.rename(columns={
        "batch_size": "batch", "num_heads": "heads", "num_key_value_heads": "kv_heads",
    })  # fmt: skip
    frame = frame.assign(context_tokens=frame["step"] + frame["isl"])
    return frame[[*COLUMNS["decode_attention"], "latency_s", "source"]]


def _mla_prefill(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame[frame["step"] == 0], "kv_cache_dtype", "kv_dtype")
    frame = frame.rename(columns={"batch_size": "batch", "isl": "new_tokens"})
    frame = frame.assign(heads=_mla_heads(frame), head_dim=MLA_KEY, value_dim=MLA_VALUE)
    return frame.assign(kv_heads=frame["heads"])[[*COLUMNS["mla_prefill"], "latency_s", "source"]]


def _mla_decode(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame, "kv_cache_dtype", "kv_dtype").rename(columns={"batch_size": "batch"})
    frame = frame.assign(
        heads=_mla_heads(frame), kv_heads=1, head_dim=MLA_LATENT, context_tokens=frame["step"] + frame["isl"]
    )
    return frame[[*COLUMNS["mla_decode"], "latency_s", "source"]]


def _mla_heads(frame: pd.DataFrame) -> pd.Series[int]:
    """Heads of a rank: the tables state them per rank at every ``tp_size``."""
    return frame["num_heads"]


def _moe(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame[frame["distribution"].isin(["balanced", SKEWED])], "moe_dtype", "dtype")
    frame = frame.assign(source=frame["source"] + " " + frame["moe_dtype"])
    frame = frame[~frame["source"].str.contains(MODELOPT)]
    ungated = frame["source"].str.contains("nongated") | frame["hidden_size"].isin(UNGATED_HIDDEN)
    frame = frame[~ungated & (frame["topk"] != UNGATED_TOPK)]
    frame = frame.assign(
        width=frame["inter_size"] // frame["moe_tp_size"],
        routing=frame["distribution"].map({"balanced": "even", SKEWED: "skewed"}),
    ).rename(columns={
        "num_tokens": "tokens", "hidden_size": "hidden", "topk": "per_token", "num_experts": "experts",
        "moe_ep_size": "sets",
    })  # fmt: skip
    limited = (frame[["hidden", "experts", "per_token"]].to_numpy() == GROUP_LIMITED).all(axis=1)
    grouped = limited & frame["dtype"].isin(list(BLOCK_SCALED)) & ~frame["source"].str.contains(GIVEN_EXPERTS)
    grouped |= frame["source"].str.contains(ALL_BY_GROUPS)
    kept: pd.DataFrame = frame[~grouped]
    return kept[[*COLUMNS["moe"], "latency_s", "source"]]


def _linear(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame[(frame["phase"] == "context") & frame["source"].str.contains(DELTA_RULE)]
    frame = frame.rename(columns={"batch_size": "batch", "seq_len": "new_tokens", "num_v_heads": "value_heads"})
    return frame.assign(dtype="bf16")[[*COLUMNS["linear_attention"], "latency_s", "source"]]


def read_collectives(data: Path, system: str, engine: str) -> tuple[pd.DataFrame, str] | None:
    """Collectives of 16-bit elements, and the tables' names; None where none was measured.

    The all-reduce is the engine's own inside a CUDA graph; the other collectives are NCCL's.
    """
    import pandas as pd

    folder = data / system / "comm"
    engine_table = next(iter(_newest_first(folder / engine, ALL_REDUCE_TABLE)), None)
    nccl = next(iter(_newest_first(folder / "nccl", "nccl_perf")), None)
    parts, sources = [], []
    if engine_table is not None:
        parts.append(_in_graph(_read(engine_table)).assign(collective="all_reduce"))
        sources.append(f"{engine}/{engine_table.parent.name}/{engine_table.stem}")
    if nccl is not None:
        frame = _read(nccl)
        frame = frame[frame["nccl_dtype"] == "half"]
        names = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
        if engine_table is None:
            names["all_reduce"] = "all_reduce"
        frame = frame[frame["op_name"].isin(list(names))]
        parts.append(frame.assign(collective=frame["op_name"].map(names)))
        sources.append(f"nccl/{nccl.parent.name}/{nccl.stem}")
    if not parts:
        return None
    return _as_collectives(pd.concat(parts)), ", ".join(sources)


def read_exchange(data: Path, system: str, engine: str) -> tuple[dict[str, pd.DataFrame], str] | None:
    """The experts' all-to-all by format, in the columns of collectives, and the tables' names; None where not measured.

    TensorRT-LLM runs its two-sided kernels over NVLink, with the low-precision combine where measured. vLLM runs the
    one-sided ones (FlashInfer's). SGLang runs DeepEP's: low-latency kernels up to the most tokens they were measured
    with, high-throughput kernels beyond. ``payload_bytes``: a rank's tokens in 16 bits, a copy for each expert.
    """
    folder = data / system / "comm"
    if engine == "sglang":
        return _deep_ep(folder / "sglang", data)
    path = next(iter(_newest_first(folder / "trtllm", "trtllm_alltoall_perf")), None)
    if path is None:
        return None
    frame = _read(path)
    kernels = "NVLinkTwoSided" if engine == "trtllm" else "NVLinkOneSided"
    frame = frame[frame["source"] == kernels].rename(columns={"moe_ep_size": "ranks"})
    frame["payload_bytes"] = 2.0 * frame["num_tokens"] * frame["hidden_size"] * frame["topk"]
    by_format = {}
    for dtype, rows in frame.groupby("moe_dtype"):
        narrow_combine = "alltoall_combine_low_precision"
        dropped = "alltoall_combine" if (rows["op_name"] == narrow_combine).any() else narrow_combine
        total = rows[rows["op_name"] != dropped].groupby(["ranks", "payload_bytes"])["latency_s"].sum()
        by_format[DTYPES[str(dtype)]] = total.reset_index()
    return by_format, f"{system}/{path.parent.relative_to(data / system)}/{path.stem} ({kernels})"


#: Multiprocessors that DeepEP's high-throughput kernels use by default (``Buffer.num_sms``).
DEEP_EP_MULTIPROCESSORS = 20


def _deep_ep(folder: Path, data: Path) -> tuple[dict[str, pd.DataFrame], str] | None:
    """``read_exchange`` for SGLang: tables of one host; tokens go out in 8 bits and come back in 16."""
    import pandas as pd

    low = next(iter(_newest_first(folder, "wideep_deepep_ll_perf")), None)
    high = next(iter(_newest_first(folder, "wideep_deepep_normal_perf")), None)
    if low is None or high is None:
        return None
    system = folder.parent.parent.name
    low_latency, high_throughput = pd.read_parquet(low), pd.read_parquet(high)
    low_latency["latency_s"] = (low_latency["dispatch_avg_t_us"] + low_latency["combine_avg_t_us"]) * 1e-6
    columns = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us")
    high_throughput["latency_s"] = high_throughput[list(columns)].sum(axis=1) * 1e-6
    share = DEEP_EP_MULTIPROCESSORS
    high_throughput = high_throughput[
        (high_throughput["dispatch_sms"] == share) & (high_throughput["combine_sms"] == share)
    ]
    shape = {"hidden_size": 7168, "num_topk": 8, "num_experts": 256}
    low_latency, high_throughput = (
        frame[(frame[list(shape)] == pd.Series(shape)).all(axis=1)] for frame in (low_latency, high_throughput)
    )
    frame = pd.concat([low_latency, high_throughput[high_throughput["num_token"] > low_latency["num_token"].max()]])
    payload_bytes = 2.0 * frame["num_token"] * frame["hidden_size"] * frame["num_topk"]
    ranks = 4 if system.startswith("gb") else 8
    rows = frame.assign(payload_bytes=payload_bytes, ranks=ranks)[["ranks", "payload_bytes", "latency_s"]]
    return {"fp8_block": rows}, f"{system}/{low.parent.relative_to(data / system)}/{low.stem}, {high.stem}"


def read_experts(data: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Experts of one version of an engine, and the table's name. ``read_aiconfigurator`` reads the newest version.

    Raises:
        FileNotFoundError: they were not measured.
    """
    path = data / system / "moe" / engine / version / "moe_perf.parquet"
    return _moe(_read(path)), f"{system}/{path.parent.relative_to(data / system)}/{path.stem}"


def read_all_reduce(data: Path, system: str, engine: str, version: str) -> pd.DataFrame:
    """The all-reduce of one version of an engine. ``read_aiconfigurator`` reads the newest version.

    Raises:
        FileNotFoundError: it was not measured.
    """
    path = data / system / "comm" / engine / version / f"{ALL_REDUCE_TABLE}.parquet"
    return _as_collectives(_in_graph(_read(path)).assign(collective="all_reduce"))


def read_quantise(data: Path, system: str, engine: str) -> tuple[pd.DataFrame, str]:
    """Seconds of the two passes that find and apply a scale (newest tables), and the tables' names.

    Raises:
        ValueError: a table is missing.
    """
    folder = data / system / "quantize" / engine
    paths = [path for name in QUANTISE_TABLES for path in _newest_first(folder, name)[:1]]
    if len(paths) < len(QUANTISE_TABLES):
        raise ValueError(f"{data}: no table of passes that quantise, of system {system} and engine {engine}")
    find, apply = (_quantise_s(path) for path in paths)
    names = " + ".join(f"{system}/{path.parent.relative_to(data / system)}/{path.stem}" for path in paths)
    return (find + apply).dropna().rename("latency_s").reset_index(), names


def _in_graph(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows measured inside a CUDA graph; all rows where none was."""
    if "backend" in frame.columns and frame["backend"].str.endswith("_graph").any():
        return frame[frame["backend"].str.endswith("_graph")]
    return frame


def _as_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(ranks=frame["num_gpus"], payload_bytes=frame["message_size"] * 2.0)
    return frame[[*COLUMNS["collectives"], "latency_s", "source"]]


def read_former_sparse(former: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Blocks of sparse attention of a former version of an engine, and the tables' name.

    Args:
        former: ``systems/data`` of aiconfigurator up to 0.8.0: SYSTEM/ENGINE/VERSION/TABLE.txt, with ``float16`` for
            all 16-bit formats.
        system: the accelerator's name there.
        engine: of the folder.
        version: of the engine.

    Raises:
        FileNotFoundError: they were not measured.
    """
    import pandas as pd

    folder = former / system / engine / version
    frames = {
        phase: _with_seconds(pd.read_csv(folder / f"{name}_perf.txt").replace("float16", "bfloat16"))
        for phase, name in SPARSE_TABLES.items()
    }
    return _sparse_rows(frames), f"aiconfigurator 0.8.0, {system}/{engine}/{version}/dsa_*_module_perf"


def read_former_products(former: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Dense products of a former version of an engine, and the table's name (see ``read_former_sparse``).

    Raises:
        FileNotFoundError: they were not measured.
    """
    import pandas as pd

    frame = pd.read_csv(former / system / engine / version / "gemm_perf.txt").replace("float16", "bfloat16")
    return _gemm(_with_seconds(frame)), f"aiconfigurator 0.8.0, {system}/{engine}/{version}/gemm_perf"


def _sparse(folder: Path) -> tuple[pd.DataFrame, str] | None:
    """Whole blocks of sparse attention of the newest version that measured both phases."""
    for path in _newest_first(folder, f"{SPARSE_TABLES['prefill']}_perf"):
        files = {phase: path.with_name(f"{name}_perf.parquet") for phase, name in SPARSE_TABLES.items()}
        if not all(file.exists() for file in files.values()):
            continue
        return (
            _sparse_rows({phase: _read(file) for phase, file in files.items()}),
            f"{path.parents[3].name}/sparse_attention/{path.parent.parent.name}/{path.parent.name}/dsa_*_module_perf",
        )
    return None


def _sparse_rows(frames: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Blocks of both phases in the columns of ``sparse_attention``."""
    import pandas as pd

    parts = []
    for phase, table in frames.items():
        frame = table[(table["op_name"] == SPARSE_TABLES[phase]) & table["model"].isin(list(SPARSE_MODELS))]
        frame = _dtyped(_dtyped(frame, "gemm_type", "dtype"), "kv_cache_dtype", "kv_dtype")
        cached = frame["step"] if phase == "prefill" else frame["step"] + frame["isl"] - 1
        parts.append(frame.assign(
            phase=phase, model=frame["model"].map(SPARSE_MODELS), batch=frame["batch_size"],
            new_tokens=frame["isl"], cached_tokens=cached, heads=frame["num_heads"],
        ))  # fmt: skip
    return pd.concat(parts)[[*COLUMNS["sparse_attention"], "latency_s", "source"]]
