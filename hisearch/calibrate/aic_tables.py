"""Tables of aiconfigurator-core, and of former versions of it, as those of our own form (``calibrate.tables``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.tables import COLUMNS, MLA_KEY, MLA_LATENT, MLA_VALUE, Tables
from hisearch.specs.versions import version_key

if TYPE_CHECKING:
    import pandas as pd

#: Formats as aiconfigurator writes them; those left out are of no engine setting that is simulated.
DTYPES = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4",
}  # fmt: skip

#: Models whose sparse attention aiconfigurator measured, by their names in the catalogue; later GLM-5 share what an
#: indexer chose among layers.
SPARSE_MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "zai-org/GLM-5": "glm-5", "zai-org/GLM-5-FP8": "glm-5",
}  # fmt: skip

#: Its tables of whole blocks, by phase.
SPARSE_TABLES = {"prefill": "dsa_context_module", "decode": "dsa_generation_module"}

#: Columns that older tables do not have, and what their rows are.
ABSENT: dict[str, int | str] = {"window_size": 0, "step": 0, "kernel_source": "", "distribution": "balanced"}

#: Engines whose MLA prefill was measured on the latent (3.4 times the arithmetic), where the server rebuilds keys and
#: values of every head for prompts.
PREFILLS_IN_LATENT_SPACE = frozenset({"sglang"})

#: What quantising the activations of a product to fp8 takes: finding their scale, and applying it.
QUANTISE_TABLES = ("computescale_perf", "scale_matrix_perf")

#: An engine's own all-reduce.
ALL_REDUCE_TABLE = "custom_allreduce_perf"

#: Kernels of checkpoints that NVIDIA's ModelOpt quantised; weights that the engine quantises take others.
MODELOPT = "modelopt"

#: Nemotron's experts have no gate: one matrix in where the law has two. Their widths and experts per token.
UNGATED_HIDDEN, UNGATED_TOPK = (2688,), 22

#: Kernel of prompts in linear attention, the convolution before it apart.
DELTA_RULE = "chunk_gated_delta_rule"

#: Model whose router is limited to groups of experts (DeepSeek V3): hidden size, experts, experts per token. Made-up
#: scores tie over groups, so that most collectors' tokens fall on half of the experts (16 tokens on 256 take as long as
#: 8 do on 384); real scores do not.
GROUP_LIMITED = (7168, 256, 8)

#: Formats in which that model is published; in others its router was not run.
BLOCK_SCALED = frozenset({"fp8_block", "nvfp4"})

#: Kernels that were given the experts of each token, or routed that model without groups, and those that routed every
#: model by groups.
GIVEN_EXPERTS, ALL_BY_GROUPS = "moe_torch_flow_cutlass|moe_torch_flow_triton|deepgemm|marlin", "min_latency"

#: Skew of the routing that stands for real routers, of those measured.
SKEWED = "power_law_1.2"


def read_aiconfigurator(data: Path, system: str, engine: str) -> Tables:
    """Tables of ``systems/data`` of aiconfigurator-core, for one of its systems and engines.

    Of each family, the newest version that measured it at large: with half as many rows of use as any other.

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
    for name, found in (
        ("collectives", read_collectives(data, system, engine)),
        ("sparse_attention", _sparse(data / system / "sparse_attention" / engine)),
    ):
        if found is not None:
            frames[name], sources[name] = found
    return Tables(frames, sources)


def _newest_first(folder: Path, file: str) -> list[Path]:
    """``file`` of every version below ``folder``, newest first; release candidates come before their release."""
    return sorted(folder.glob(f"*/{file}.parquet"), key=lambda path: version_key(path.parent.name), reverse=True)


def _read(path: Path) -> pd.DataFrame:
    import pandas as pd

    return _with_seconds(pd.read_parquet(path))


def _with_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured, in seconds, with the columns that older tables do not have."""
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
    """``products`` in fp8 without the passes that find the scale of their activations and apply it.

    The benchmark multiplies 16-bit activations, so that each product has a pass of its own before it; servers quantise
    in the norm or the activation function before. The tables have these passes by themselves, in two parts; where
    one of them was not measured (zero), products stay as they are.
    """
    tables = [next(iter(_newest_first(folder, file)), None) for file in QUANTISE_TABLES]
    passes = [_quantise_s(path) for path in tables if path is not None]
    if len(passes) < len(QUANTISE_TABLES) or any(part.median() <= 0.0 for part in passes):
        return products
    seconds = sum(passes[1:], passes[0]).reindex(list(zip(products["m"], products["k"], strict=True))).to_numpy()
    narrow = products["dtype"] == "fp8"
    without = products["latency_s"] - seconds
    kept = products.assign(latency_s=products["latency_s"].where(~narrow, without))
    return kept[~narrow | (kept["latency_s"] > 0.0)]


def _quantise_s(path: Path) -> pd.Series[float]:
    """Seconds of one part by (m, k)."""
    import pandas as pd

    frame = pd.read_parquet(path)
    return frame.groupby(["m", "k"])["latency"].median() * 1e-3


def _prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """Full attention; where queries were measured in two formats, those of the KV cache's."""
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
    """Heads of a rank, which the tables give as such whatever their ``tp_size``."""
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
    """The engine's own all-reduce inside a CUDA graph, and NCCL's other collectives, of 16-bit elements; their names.

    None where neither was measured.
    """
    import pandas as pd

    folder = data / system / "comm"
    own = next(iter(_newest_first(folder / engine, ALL_REDUCE_TABLE)), None)
    nccl = next(iter(_newest_first(folder / "nccl", "nccl_perf")), None)
    parts, sources = [], []
    if own is not None:
        parts.append(_in_graph(_read(own)).assign(collective="all_reduce"))
        sources.append(f"{engine}/{own.parent.name}/{own.stem}")
    if nccl is not None:
        frame = _read(nccl)
        frame = frame[frame["nccl_dtype"] == "half"]
        names = {"all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"}
        if own is None:
            names["all_reduce"] = "all_reduce"
        frame = frame[frame["op_name"].isin(list(names))]
        parts.append(frame.assign(collective=frame["op_name"].map(names)))
        sources.append(f"nccl/{nccl.parent.name}/{nccl.stem}")
    if not parts:
        return None
    return _as_collectives(pd.concat(parts)), ", ".join(sources)


def read_exchange(data: Path, system: str, engine: str) -> tuple[dict[str, pd.DataFrame], str] | None:
    """The all-to-all of experts' tokens by format, in the columns of collectives, and the tables' names.

    TensorRT-LLM's own kernels over NVLink (both ways, as it has them by itself, with the narrow combine where there is
    one); vLLM's are these, FlashInfer's, one way. SGLang's are DeepEP's: of low latency up to the most tokens that they
    were measured with, of high throughput beyond. ``payload_bytes``: of a rank's tokens in 16 bits, a copy for each
    expert. None where neither was measured.
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
    found = {}
    for dtype, part in frame.groupby("moe_dtype"):
        narrow = "alltoall_combine_low_precision"
        dropped = "alltoall_combine" if (part["op_name"] == narrow).any() else narrow
        total = part[part["op_name"] != dropped].groupby(["ranks", "payload_bytes"])["latency_s"].sum()
        found[DTYPES[str(dtype)]] = total.reset_index()
    return found, f"{system}/{path.parent.relative_to(data / system)}/{path.stem} ({kernels})"


#: Multiprocessors that DeepEP's kernels of high throughput have by default (``Buffer.num_sms``).
DEEP_EP_MULTIPROCESSORS = 20


def _deep_ep(folder: Path, data: Path) -> tuple[dict[str, pd.DataFrame], str] | None:
    """SGLang's part of ``read_exchange``: tables of one host, whose tokens go in 8 bits and come back in 16."""
    import pandas as pd

    low = next(iter(_newest_first(folder, "wideep_deepep_ll_perf")), None)
    high = next(iter(_newest_first(folder, "wideep_deepep_normal_perf")), None)
    if low is None or high is None:
        return None
    system = folder.parent.parent.name
    few, many = pd.read_parquet(low), pd.read_parquet(high)
    few["latency_s"] = (few["dispatch_avg_t_us"] + few["combine_avg_t_us"]) * 1e-6
    columns = ("dispatch_transmit_us", "dispatch_notify_us", "combine_transmit_us", "combine_notify_us")
    many["latency_s"] = many[list(columns)].sum(axis=1) * 1e-6
    share = DEEP_EP_MULTIPROCESSORS
    many = many[(many["dispatch_sms"] == share) & (many["combine_sms"] == share)]
    shape = {"hidden_size": 7168, "num_topk": 8, "num_experts": 256}
    few, many = (frame[(frame[list(shape)] == pd.Series(shape)).all(axis=1)] for frame in (few, many))
    frame = pd.concat([few, many[many["num_token"] > few["num_token"].max()]])
    payload_bytes = 2.0 * frame["num_token"] * frame["hidden_size"] * frame["num_topk"]
    ranks = 4 if system.startswith("gb") else 8
    found = frame.assign(payload_bytes=payload_bytes, ranks=ranks)[["ranks", "payload_bytes", "latency_s"]]
    return {"fp8_block": found}, f"{system}/{low.parent.relative_to(data / system)}/{low.stem}, {high.stem}"


def read_experts(data: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Experts of one version of an engine, as ``read_aiconfigurator`` has the newest one's, and the table's name.

    Raises:
        FileNotFoundError: they were not measured.
    """
    path = data / system / "moe" / engine / version / "moe_perf.parquet"
    return _moe(_read(path)), f"{system}/{path.parent.relative_to(data / system)}/{path.stem}"


def read_all_reduce(data: Path, system: str, engine: str, version: str) -> pd.DataFrame:
    """The all-reduce of one version of an engine, as ``read_aiconfigurator`` has the newest one's.

    Raises:
        FileNotFoundError: it was not measured.
    """
    path = data / system / "comm" / engine / version / f"{ALL_REDUCE_TABLE}.parquet"
    return _as_collectives(_in_graph(_read(path)).assign(collective="all_reduce"))


def read_quantise(data: Path, system: str, engine: str) -> tuple[pd.DataFrame, str]:
    """What an engine's two passes take that find a scale and apply it (newest tables), and the tables' names.

    Raises:
        ValueError: one of them is not there.
    """
    folder = data / system / "quantize" / engine
    found = [path for name in QUANTISE_TABLES for path in _newest_first(folder, name)[:1]]
    if len(found) < len(QUANTISE_TABLES):
        raise ValueError(f"{data}: no table of passes that quantise, of system {system} and engine {engine}")
    find, apply = (_quantise_s(path) for path in found)
    names = " + ".join(f"{system}/{path.parent.relative_to(data / system)}/{path.stem}" for path in found)
    return (find + apply).dropna().rename("latency_s").reset_index(), names


def _in_graph(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows measured inside a CUDA graph, where some were."""
    if "backend" in frame.columns and frame["backend"].str.endswith("_graph").any():
        return frame[frame["backend"].str.endswith("_graph")]
    return frame


def _as_collectives(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame.assign(ranks=frame["num_gpus"], payload_bytes=frame["message_size"] * 2.0)
    return frame[[*COLUMNS["collectives"], "latency_s", "source"]]


def read_former_sparse(former: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Blocks of sparse attention of a former version of an engine, and the tables' name.

    Args:
        former: ``systems/data`` of aiconfigurator up to 0.8.0, which had SYSTEM/ENGINE/VERSION/TABLE.txt, with
            ``float16`` for all 16-bit formats.
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
    """Blocks of both phases as rows of our own form."""
    import pandas as pd

    parts = []
    for phase, whole in frames.items():
        frame = whole[(whole["op_name"] == SPARSE_TABLES[phase]) & whole["model"].isin(list(SPARSE_MODELS))]
        frame = _dtyped(_dtyped(frame, "gemm_type", "dtype"), "kv_cache_dtype", "kv_dtype")
        cached = frame["step"] if phase == "prefill" else frame["step"] + frame["isl"] - 1
        parts.append(frame.assign(
            phase=phase, model=frame["model"].map(SPARSE_MODELS), batch=frame["batch_size"],
            new_tokens=frame["isl"], cached_tokens=cached, heads=frame["num_heads"],
        ))  # fmt: skip
    return pd.concat(parts)[[*COLUMNS["sparse_attention"], "latency_s", "source"]]
