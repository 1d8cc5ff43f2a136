"""Readers of aiconfigurator-core's tables of operators, new and former, into the columns of ``calibrate.tables``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.tables import COLUMNS, MLA_KEY, MLA_LATENT, MLA_VALUE, Tables
from refit.aic_collectives import read_collectives
from refit.aic_files import DTYPES, newest, newest_first, read, source_of, with_seconds

if TYPE_CHECKING:
    import pandas as pd

#: Models whose sparse attention aiconfigurator measured -> name in the catalogue. Later GLM-5 share an indexer's choice
#: among layers.
SPARSE_MODELS = {
    "deepseek-ai/DeepSeek-V3.2": "deepseek-v3.2", "zai-org/GLM-5": "glm-5", "zai-org/GLM-5-FP8": "glm-5",
}  # fmt: skip

#: Its tables of whole attention blocks, by phase.
SPARSE_TABLES = {"prefill": "dsa_context_module", "decode": "dsa_generation_module"}

#: Engines whose MLA prefill was measured on the latent (3.4 times the arithmetic). The server rebuilds keys and values
#: of every head for prompts instead.
PREFILLS_IN_LATENT_SPACE = frozenset({"sglang"})

#: The two passes that quantise a product's activations to fp8: find the scale, apply it.
QUANTISE_TABLES = ("computescale_perf", "scale_matrix_perf")

#: Kernels of checkpoints that NVIDIA's ModelOpt quantised. Weights that the engine quantises use others.
MODELOPT = "modelopt"

#: Nemotron's experts have no gate: one matrix in where the law has two. Their widths and experts per token.
UNGATED_HIDDEN, UNGATED_TOPK = (2688,), 22

#: Kernel of prompts in linear attention, without the convolution before it.
DELTA_RULE = "chunk_gated_delta_rule"
#: Kernels of Kimi Delta Attention for prompts: SGLang's in Triton, and FlashKDA, which vLLM takes.
KDA_KERNELS = ("chunk_kda", "flashkda_fwd")

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
        "kda": ("kda", "kda_perf", _kda),
    }
    frames, sources = {}, {}
    if engine in PREFILLS_IN_LATENT_SPACE:
        del readers["mla_prefill"]
    for name, (family, file, reader) in readers.items():
        versions = [(path, reader(read(path))) for path in newest_first(data / system / family / engine, file)]
        most = max((len(frame) for _, frame in versions), default=0)
        for path, frame in versions:
            if most and 2 * len(frame) >= most:
                frames[name] = frame
                sources[name] = source_of(path, data)
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


def _dtyped(frame: pd.DataFrame, column: str, name: str) -> pd.DataFrame:
    frame = frame[frame[column].isin(list(DTYPES))]
    return frame.assign(**{name: frame[column].map(DTYPES)})


def _gemm(frame: pd.DataFrame) -> pd.DataFrame:
    return _table(_dtyped(frame, "gemm_dtype", "dtype"), "gemm")


def _without_quantise(products: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """fp8 rows of ``products`` without the passes that find and apply the scale of their activations.

    The benchmark multiplies 16-bit activations, so a quantising pass precedes each product. Servers quantise in the
    preceding norm or activation function. Separate tables hold the two passes. Where one was not measured (zero),
    products stay as they are.
    """
    tables = [newest(folder, file) for file in QUANTISE_TABLES]
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


def _table(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """The columns of a table of ``calibrate.tables``, with each row's kernel."""
    return frame[[*COLUMNS[name], "latency_s", "source"]]


def _prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """Full attention. Where queries were measured in two formats, the rows in the KV cache's format."""
    frame = frame[(frame["window_size"] == 0) & (frame["step"] == 0)]
    same = frame["attn_dtype"] == frame["kv_cache_dtype"]
    wide = ~frame["kv_cache_dtype"].isin(set(frame.loc[same, "kv_cache_dtype"]))
    frame = _dtyped(frame[same | wide], "kv_cache_dtype", "kv_dtype")
    return _table(frame.assign(value_dim=frame["head_dim"]), "prefill_attention")


def _decode(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame[frame["window_size"] == 0], "kv_cache_dtype", "kv_dtype")
    return _table(frame.assign(context_tokens=frame["step"] + frame["new_tokens"]), "decode_attention")


def _mla_prefill(frame: pd.DataFrame) -> pd.DataFrame:
    """The heads are those of a rank, at every ``tp_size``."""
    frame = _dtyped(frame[frame["step"] == 0], "kv_cache_dtype", "kv_dtype")
    return _table(frame.assign(kv_heads=frame["heads"], head_dim=MLA_KEY, value_dim=MLA_VALUE), "mla_prefill")


def _mla_decode(frame: pd.DataFrame) -> pd.DataFrame:
    """The heads are those of a rank, at every ``tp_size``."""
    frame = _dtyped(frame, "kv_cache_dtype", "kv_dtype")
    frame = frame.assign(kv_heads=1, head_dim=MLA_LATENT, context_tokens=frame["step"] + frame["new_tokens"])
    return _table(frame, "mla_decode")


def _moe(frame: pd.DataFrame) -> pd.DataFrame:
    frame = _dtyped(frame[frame["distribution"].isin(["balanced", SKEWED])], "moe_dtype", "dtype")
    frame = frame.assign(source=frame["source"] + " " + frame["moe_dtype"])
    frame = frame[~frame["source"].str.contains(MODELOPT)]
    ungated = frame["source"].str.contains("nongated") | frame["hidden"].isin(UNGATED_HIDDEN)
    frame = frame[~ungated & (frame["per_token"] != UNGATED_TOPK)]
    frame = frame.assign(
        width=frame["inter_size"] // frame["moe_tp_size"],
        routing=frame["distribution"].map({"balanced": "even", SKEWED: "skewed"}),
    )
    limited = (frame[["hidden", "experts", "per_token"]].to_numpy() == GROUP_LIMITED).all(axis=1)
    grouped = limited & frame["dtype"].isin(list(BLOCK_SCALED)) & ~frame["source"].str.contains(GIVEN_EXPERTS)
    grouped |= frame["source"].str.contains(ALL_BY_GROUPS)
    return _table(frame[~grouped], "moe")


def _linear(frame: pd.DataFrame) -> pd.DataFrame:
    frame = frame[(frame["phase"] == "context") & frame["source"].str.contains(DELTA_RULE)]
    return _table(frame.assign(dtype="bf16", new_tokens=frame["seq_len"]), "linear_attention")


def _kda(frame: pd.DataFrame) -> pd.DataFrame:
    """The chunked rule alone: tables of vLLM's convolution show the host, half a millisecond whatever the prompt."""
    frame = frame[(frame["phase"] == "context") & frame["source"].isin(KDA_KERNELS)]
    return _table(frame.assign(dtype="bf16", new_tokens=frame["seq_len"]), "kda")


def read_experts(data: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Experts of one version of an engine, and the table's name. ``read_aiconfigurator`` reads the newest version.

    Raises:
        FileNotFoundError: they were not measured.
    """
    path = data / system / "moe" / engine / version / "moe_perf.parquet"
    return _moe(read(path)), source_of(path, data)


def read_quantise(data: Path, system: str, engine: str) -> tuple[pd.DataFrame, str]:
    """Seconds of the two passes that find and apply a scale (newest tables), and the tables' names.

    Raises:
        ValueError: a table is missing.
    """
    folder = data / system / "quantize" / engine
    paths = [path for name in QUANTISE_TABLES for path in newest_first(folder, name)[:1]]
    if len(paths) < len(QUANTISE_TABLES):
        raise ValueError(f"{data}: no table of passes that quantise, of system {system} and engine {engine}")
    find, apply = (_quantise_s(path) for path in paths)
    names = " + ".join(source_of(path, data) for path in paths)
    return (find + apply).dropna().rename("latency_s").reset_index(), names


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
        phase: with_seconds(pd.read_csv(folder / f"{name}_perf.txt").replace("float16", "bfloat16"))
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
    return _gemm(with_seconds(frame)), f"aiconfigurator 0.8.0, {system}/{engine}/{version}/gemm_perf"


def read_former_experts(former: Path, system: str, engine: str, version: str) -> tuple[pd.DataFrame, str]:
    """Experts of a former version of an engine, and the table's name (see ``read_former_sparse``).

    Raises:
        FileNotFoundError: they were not measured.
    """
    import pandas as pd

    frame = pd.read_csv(former / system / engine / version / "moe_perf.txt").replace("float16", "bfloat16")
    return _moe(with_seconds(frame)), f"aiconfigurator 0.8.0, {system}/{engine}/{version}/moe_perf"


def _sparse(folder: Path) -> tuple[pd.DataFrame, str] | None:
    """Whole blocks of sparse attention of the newest version that measured both phases."""
    for path in newest_first(folder, f"{SPARSE_TABLES['prefill']}_perf"):
        files = {phase: path.with_name(f"{name}_perf.parquet") for phase, name in SPARSE_TABLES.items()}
        if not all(file.exists() for file in files.values()):
            continue
        return (
            _sparse_rows({phase: read(file) for phase, file in files.items()}),
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
        cached = frame["step"] if phase == "prefill" else frame["step"] + frame["new_tokens"] - 1
        parts.append(frame.assign(phase=phase, model=frame["model"].map(SPARSE_MODELS), cached_tokens=cached))
    return _table(pd.concat(parts), "sparse_attention")
