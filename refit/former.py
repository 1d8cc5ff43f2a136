"""Laws of kernels that former versions of engines ran: ``former_*`` of a profile's laws.

Laws fitted on tables of former versions (``former_folder``) stay as shipped where these tables are absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hisearch.calibrate import families
from hisearch.calibrate.build import Target, sparse_attention
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.base import EngineName
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import GemmTerms, LawsSpec, MoeTerms, QuantiseTerms, SparseTerms
from hisearch.specs.machines.profile import LatencyProfileSpec
from refit.aic_tables import (
    read_experts,
    read_former_experts,
    read_former_products,
    read_former_sparse,
    read_quantise,
)
from refit.boards import BOARDS
from refit.published import FLASHINFER_FP8_BLOCK, Products, products

if TYPE_CHECKING:
    import pandas as pd

#: An accelerator of the catalogue under an engine.
Key = tuple[str, EngineName]


class FormerExperts(NamedTuple):
    """Experts that ran other kernels.

    formats: of the experts.
    table: version of the engine whose table has the kernels.
    kernel: part of their names there; empty: all.
    former: whether the table is aiconfigurator 0.8.0's.
    experts: of the models that ran them, where the table has none with as few (``shorter_launch``).
    """

    formats: tuple[str, ...]
    table: str
    kernel: str = ""
    experts: int | None = None
    former: bool = False


#: Experts in MXFP4 under vLLM's scripts for gpt-oss on Hopper: Marlin's since 0.13.0.
_MARLIN = {
    "0.13.0": FormerExperts(("fp4",), "0.24.0"),
    "0.24.0": FormerExperts(("fp4",), "0.24.0", kernel="marlin", experts=128),
}

#: TensorRT-LLM's experts in fp8: Mixtral's take 9 to 23 % longer than in 1.2.0rc5 from 1,024 tokens on.
_RC3 = {"1.0.0": FormerExperts(("fp8",), "1.0.0rc3", former=True)}

#: (accelerator, engine) -> version -> experts of versions before it. On a B200 TensorRT-LLM had DeepGEMM's kernels for
#: fp8 blocks (github SemiAnalysisAI/InferenceX, ``perf-changelog.yaml``, pull request 594), vLLM's runs those of
#: Triton, since their script turned FlashInfer's and DeepGEMM's off (pull request 947 of the same). On H100 and H200
#: the scripts for gpt-oss ask for Marlin's (``VLLM_MXFP4_USE_MARLIN``) since vLLM 0.13.0 (pull request 327).
FORMER: dict[tuple[str, EngineName], dict[str, FormerExperts]] = {
    ("b200", "trtllm"): {"1.2.0rc6": FormerExperts(("fp8_block",), "1.3.0rc20")},
    ("b200", "vllm"): {"0.19.0": FormerExperts(("fp8_block",), "0.19.0")},
    ("h100-sxm", "vllm"): _MARLIN,
    ("h200", "vllm"): _MARLIN,
    ("h100-sxm", "trtllm"): _RC3,
    ("h200", "trtllm"): _RC3,
}


#: (accelerator, engine) -> version -> format -> products of versions before it. InferenceMAX's scripts for SGLang on a
#: B200 in fp8 had FlashInfer's (``SGLANG_ENABLE_FLASHINFER_GEMM=true``, ``SGL_ENABLE_JIT_DEEPGEMM=false``) from October
#: 2025 to 0.5.9; the engine's own choice, and its table's, is DeepGEMM.
FORMER_PRODUCTS: dict[tuple[str, EngineName], dict[str, dict[str, Products]]] = {
    ("b200", "sglang"): {"0.5.10": {"fp8_block": FLASHINFER_FP8_BLOCK}}
}


class FormerProducts(NamedTuple):
    """Products of a table of aiconfigurator 0.8.0: accelerator of the catalogue, version and formats.

    The kernel that quantises their activations takes a fixed time per token, whatever its width.
    """

    accelerator: str
    table: str
    formats: tuple[str, ...]


#: (accelerator, engine) -> version -> products of versions before it. TensorRT-LLM's products in fp8 blocks on
#: Blackwell take 19 to 35 ns per token more in 1.2.0rc5 and 1.2.0rc6 than in 1.3.0rc20, at any width. Those on Hopper
#: do not. B300 and GB300 have no such tables and use those of B200 and GB200.
FORMER_TABLES: dict[tuple[str, EngineName], dict[str, FormerProducts]] = {
    (name, "trtllm"): {"1.3.0": FormerProducts(measured, table, ("fp8_block",))}
    for name, measured, table in (
        ("b200", "b200", "1.2.0rc5"),
        ("b300", "b200", "1.2.0rc5"),
        ("gb200", "gb200", "1.2.0rc6"),
        ("gb300", "gb200", "1.2.0rc6"),
    )
}


#: (accelerator, engine) -> version before which activations were quantised in separate passes. TensorRT-LLM's
#: ``FP8QDQLinearMethod`` finds and applies the scale of 16-bit input where the checkpoint states none; norms, SwiGLU
#: and attention then write 16 bits. The products of 1.0.0rc3 include these passes (aiconfigurator 0.2.0,
#: ``h100_sxm/trtllm/1.0.0rc3/gemm_perf``): 10 us more at 64 tokens than present ones without passes, some 80 us more
#: at 4,096.
FORMER_QUANTISE: dict[tuple[str, EngineName], str] = {("h100-sxm", "trtllm"): "1.0.0"}


#: (accelerator, engine) -> version -> version whose table has the sparse attention of versions before it. On 8 heads a
#: decode block of GLM-5 takes 37 us more in 0.5.10, and a prompt block of 2,048 tokens 1.7 times as long.
FORMER_SPARSE: dict[tuple[str, EngineName], dict[str, str]] = {("b200", "sglang"): {"0.5.14": "0.5.10"}}


def former_folder(given: Path) -> Path:
    """``systems/data`` of aiconfigurator 0.8.0, below ``given``.

    Raises:
        ValueError: it is not there.
    """
    for folder in (given, given / "systems" / "data", given / "aiconfigurator" / "systems" / "data"):
        if (folder / "b200_sxm" / "sglang").is_dir():
            return folder
    raise ValueError(f"{given}: neither it nor systems/data below it has the folders of aiconfigurator 0.8.0")


class Sources(NamedTuple):
    """Folders of tables, and the accelerator's name there.

    data: aiconfigurator-core's ``systems/data``. system: the accelerator's name there.
    former: ``systems/data`` of aiconfigurator 0.8.0.
    """

    data: Path
    system: str
    former: Path | None


def with_former(
    profile: LatencyProfileSpec, key: Key, target: Target, sources: Sources, report: Callable[[str], None]
) -> LatencyProfileSpec:
    """``profile`` with products, quantising passes, sparse attention and experts of former versions.

    Raises:
        FileNotFoundError: a table of these versions is missing.
    """
    laws = profile.laws
    assert laws is not None
    update = {
        "former_gemm": _products(key, laws, target) | _tables(key, sources, report),
        "former_quantise": _quantise(key, laws, sources),
        "former_sparse": _sparse(key, laws, target, sources, report),
        "former_moe": _experts(key, target, sources, report),
    }
    return profile.model_copy(update={"laws": laws.model_copy(update=update)})


def _products(key: Key, laws: LawsSpec, target: Target) -> dict[str, dict[str, GemmTerms]]:
    """Products by version and format; activations are quantised as before the present products."""
    by_version: dict[str, dict[str, GemmTerms]] = {}
    for before, formats in FORMER_PRODUCTS.get(key, {}).items():
        by_version[before] = {}
        for dtype, published in formats.items():
            layout = FORMATS[dtype]
            passes = laws.gemm[dtype].quantise_bandwidth
            by_version[before][dtype] = products(published, layout, target.sheet(layout.rate), passes)
    return by_version


def _tables(key: Key, sources: Sources, report: Callable[[str], None]) -> dict[str, dict[str, GemmTerms]]:
    """Products of tables of aiconfigurator 0.8.0, by version and format."""
    by_version: dict[str, dict[str, GemmTerms]] = {}
    for before, former in FORMER_TABLES.get(key, {}).items():
        if sources.former is None:
            report("gemm of former versions: no tables of them, so as shipped")
            return _shipped(key).former_gemm
        board = BOARDS[former.accelerator]
        frame, source = read_former_products(sources.former, board.system, key[1], former.table)
        spec = Catalogue().get("Accelerator", former.accelerator).spec
        target = Target(former.accelerator, spec, board.multiprocessors, key[1])
        by_version[before] = {
            dtype: families.gemm(
                frame[frame["dtype"] == dtype], FORMATS[dtype], target.sheet(FORMATS[dtype].rate), source,
                quantises_by_token=True,
            )
            for dtype in former.formats
        }  # fmt: skip
        report(f"gemm {', '.join(former.formats)} of former versions, {source}")
    return by_version


def _shipped(key: Key) -> LawsSpec:
    """The laws of the shipped profile."""
    profile: LatencyProfileSpec = Catalogue().get("LatencyProfile", f"{key[1]}-{key[0]}").spec
    assert profile.laws is not None
    return profile.laws


def _quantise(key: Key, laws: LawsSpec, sources: Sources) -> dict[str, QuantiseTerms]:
    """Laws of the quantising passes, by version before which they ran separately."""
    if key not in FORMER_QUANTISE:
        return {}
    frame, source = read_quantise(sources.data, sources.system, key[1])
    sheet = Sheet(laws.multiprocessors, laws.flops, laws.memory_bandwidth_bytes_per_s)
    return {FORMER_QUANTISE[key]: families.quantise(frame, source, sheet)}


def _sparse(
    key: Key, laws: LawsSpec, target: Target, sources: Sources, report: Callable[[str], None]
) -> dict[str, dict[str, SparseTerms]]:
    """Sparse attention by version and KV-cache format."""
    if key not in FORMER_SPARSE:
        return {}
    if sources.former is None:
        report("sparse_attention of former versions: no tables of them, so as shipped")
        return _shipped(key).former_sparse
    by_version = {}
    for before, version in FORMER_SPARSE[key].items():
        table = read_former_sparse(sources.former, sources.system, key[1], version)
        by_version[before] = sparse_attention(table, laws.gemm, laws.mla_prefill, target, report)
    return by_version


def _experts(
    key: Key, target: Target, sources: Sources, report: Callable[[str], None]
) -> dict[str, dict[str, MoeTerms]]:
    """Experts by version and format."""
    by_version: dict[str, dict[str, MoeTerms]] = {}
    for before, former in FORMER.get(key, {}).items():
        if not former.former:
            frame, source = read_experts(sources.data, sources.system, key[1], former.table)
        elif sources.former is not None:
            frame, source = read_former_experts(sources.former, sources.system, key[1], former.table)
        else:
            report("moe of former versions: no tables of them, so as shipped")
            return _shipped(key).former_moe
        frame = frame[frame["source"].str.contains(former.kernel)]
        by_version[before] = _experts_of(former.formats, target, frame, source, report)
        if former.experts is not None:
            shorter_s = shorter_launch(frame, former.formats, former.experts)
            for dtype, terms in by_version[before].items():
                by_version[before][dtype] = terms.model_copy(update={"launch_s": terms.launch_s - shorter_s})
    return by_version


def shorter_launch(frame: pd.DataFrame, formats: tuple[str, ...], count: int) -> float:
    """Seconds by which a step of one token is shorter with ``count`` experts than in the rows of these ``formats``.

    Kernels that align tokens by expert take longer with more experts, whatever their width: Marlin's 28 us with 128 on
    an L40S, 39 with 384 and 61 with 896 on an H100. The estimate is a line through the shortest time of each number of
    experts, over all formats.
    """
    single_token = frame[(frame["tokens"] == 1) & (frame["sets"] == 1)]
    shortest = single_token.groupby("experts")["latency_s"].min()
    slope, at_none = np.polyfit(shortest.index.to_numpy(np.float64), shortest.to_numpy(), 1)
    known = single_token[single_token["dtype"].isin(formats)]["experts"].min()
    return float(shortest[known] - (at_none + slope * count))


def _experts_of(
    formats: Iterable[str], target: Target, frame: pd.DataFrame, source: str, report: Callable[[str], None]
) -> dict[str, MoeTerms]:
    """Laws of experts in ``formats`` on one table; ``frame`` has the columns of ``moe``."""
    laws = {}
    for dtype in formats:
        rows = frame[frame["dtype"] == dtype]
        laws[dtype] = families.moe(rows, FORMATS[dtype], target.sheet(FORMATS[dtype].rate), source)
        report(f"moe {dtype} of former versions, {source}")
    return laws
