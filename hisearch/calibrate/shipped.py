"""The profiles that hisearch ships: which accelerators and engines, and what they are fitted on."""

from __future__ import annotations

import datetime
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hisearch.calibrate.build import (
    Measured,
    Target,
    build_profile,
    curves_of,
    experts,
    newest_version,
    sparse_attention,
)
from hisearch.calibrate.families import quantise
from hisearch.calibrate.hosts import with_hosts
from hisearch.calibrate.published import FLASHINFER_FP8_BLOCK, Products, products
from hisearch.calibrate.tables import (
    read_aiconfigurator,
    read_all_reduce,
    read_experts,
    read_former_sparse,
    read_quantise,
)
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.base import EngineName
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.laws import GemmTerms, LawsSpec
from hisearch.specs.profile import LatencyProfileSpec

if TYPE_CHECKING:
    import pandas as pd

#: What the tables are, for provenance and attribution.
SOURCE = (
    "Fitted on operator latencies of aiconfigurator-core {version} (systems/data; Copyright NVIDIA CORPORATION & "
    "AFFILIATES; Apache-2.0)"
)

#: Engines in the order in which one lends another what it lacks.
ENGINES: tuple[EngineName, ...] = ("sglang", "trtllm", "vllm")


class Board(NamedTuple):
    """An accelerator of the catalogue: its name among the tables, and its multiprocessors (NVIDIA's white papers)."""

    system: str
    multiprocessors: int
    of_another: bool = False


#: Accelerators with a shipped profile. RTX 4090 has no tables: it takes the L40S's laws, of the same architecture.
BOARDS: dict[str, Board] = {
    "a100-80gb": Board("a100_sxm", 108),
    "h100-sxm": Board("h100_sxm", 132),
    "h200": Board("h200_sxm", 132),
    "b200": Board("b200_sxm", 148),
    "l40s": Board("l40s", 142),
    "rtx-pro-6000": Board("rtx_pro_6000_server", 188),
    "rtx4090": Board("l40s", 128, of_another=True),
}


#: (accelerator, engine) -> (family, format) -> engine whose tables hold the kernels that are run. On a B200 vLLM
#: multiplies MXFP4 experts with MXFP8 activations, as SGLang does, while its own table of the models' widths has 16-bit
#: activations; TensorRT-LLM takes its own kernels for experts in fp8 blocks and NVFP4 (``moe_config.backend:
#: TRTLLM``), which SGLang runs too (``flashinfer_trtllm``), while its own tables have DeepGEMM's and, in NVFP4, routing
#: by groups for every model.
LENT: dict[tuple[str, EngineName], dict[tuple[str, str], EngineName]] = {
    ("b200", "vllm"): {("moe", "fp4"): "sglang"},
    ("b200", "trtllm"): {("moe", "fp8_block"): "sglang", ("moe", "nvfp4"): "sglang"},
}


class FormerExperts(NamedTuple):
    """Experts that ran other kernels.

    formats: of the experts. table: version whose table of the engine's has them. kernel: part of their names there, all
    where empty. experts: of the models that ran so, where the table has none with as few (``shorter_launch``).
    """

    formats: tuple[str, ...]
    table: str
    kernel: str = ""
    experts: int | None = None


#: Experts in MXFP4 under vLLM's scripts for gpt-oss on Hopper: Marlin's since 0.13.0.
_MARLIN = {
    "0.13.0": FormerExperts(("fp4",), "0.24.0"),
    "0.24.0": FormerExperts(("fp4",), "0.24.0", kernel="marlin", experts=128),
}

#: (accelerator, engine) -> version -> experts of versions before it. On a B200 TensorRT-LLM had DeepGEMM's kernels for
#: fp8 blocks (github SemiAnalysisAI/InferenceX, ``perf-changelog.yaml``, pull request 594), vLLM's runs those of
#: Triton, since their script turned FlashInfer's and DeepGEMM's off (pull request 947 of the same). On H100 and H200
#: the scripts for gpt-oss ask for Marlin's (``VLLM_MXFP4_USE_MARLIN``) since vLLM 0.13.0 (pull request 327).
FORMER: dict[tuple[str, EngineName], dict[str, FormerExperts]] = {
    ("b200", "trtllm"): {"1.2.0rc6": FormerExperts(("fp8_block",), "1.3.0rc20")},
    ("b200", "vllm"): {"0.19.0": FormerExperts(("fp8_block",), "0.19.0")},
    ("h100-sxm", "vllm"): _MARLIN,
    ("h200", "vllm"): _MARLIN,
}


#: (accelerator, engine) -> version -> format -> products of versions before it. InferenceMAX's scripts for SGLang on a
#: B200 in fp8 had FlashInfer's (``SGLANG_ENABLE_FLASHINFER_GEMM=true``, ``SGL_ENABLE_JIT_DEEPGEMM=false``) from October
#: 2025 to 0.5.9; the engine's own choice, and its table's, is DeepGEMM.
FORMER_PRODUCTS: dict[tuple[str, EngineName], dict[str, dict[str, Products]]] = {
    ("b200", "sglang"): {"0.5.10": {"fp8_block": FLASHINFER_FP8_BLOCK}}
}


#: (accelerator, engine) -> version before which activations were quantised in passes of their own: TensorRT-LLM's
#: ``FP8QDQLinearMethod`` finds and applies the scale of what comes in 16 bits where the checkpoint states none, and
#: norms, SwiGLU and attention then write 16 bits. Its products of 1.0.0rc3 were measured so (aiconfigurator 0.2.0,
#: ``h100_sxm/trtllm/1.0.0rc3/gemm_perf``): they take 10 us more than present ones without passes at 64 tokens, some
#: 80 us at 4,096.
FORMER_QUANTISE: dict[tuple[str, EngineName], str] = {("h100-sxm", "trtllm"): "1.0.0"}


#: (accelerator, engine) -> version -> the one whose table has the all-reduce of versions before it. SGLang's took 26 us
#: for 256 KiB on 8 ranks of a B200 in 0.5.9 and in 0.5.10, and takes 8.5 us in 0.5.14.
FORMER_ALL_REDUCE: dict[tuple[str, EngineName], dict[str, str]] = {("b200", "sglang"): {"0.5.14": "0.5.10"}}


#: (accelerator, engine) -> version -> the one whose table has the sparse attention of versions before it. A decode
#: block of GLM-5 takes 37 us more in 0.5.10, on 8 heads, and one of 2,048 tokens of a prompt 1.7 times as long.
FORMER_SPARSE: dict[tuple[str, EngineName], dict[str, str]] = {("b200", "sglang"): {"0.5.14": "0.5.10"}}


#: (accelerator, engine) -> engine whose table has the all-reduce that normalises on the way. FlashInfer's, which SGLang
#: and vLLM run where it is asked for (``--enable-flashinfer-allreduce-fusion``, ``fuse_allreduce_rms``), is
#: TensorRT-LLM's.
FUSED_ALL_REDUCE: dict[tuple[str, EngineName], EngineName] = {
    ("b200", "sglang"): "trtllm",
    ("b200", "vllm"): "trtllm",
    ("h100-sxm", "vllm"): "trtllm",
    ("h200", "vllm"): "trtllm",
}


#: Accelerator -> ranks -> MiB up to which vLLM fuses (``FI_ALLREDUCE_FUSION_MAX_SIZE_MB``, by compute capability).
VLLM_FUSED_MIB: dict[str, dict[int, float]] = {
    "b200": {2: 64, 4: 32, 8: 1},
    "h100-sxm": {2: 64, 4: 2, 8: 0.5},
    "h200": {2: 64, 4: 2, 8: 0.5},
}


def data_folder(given: Path | None) -> Path:
    """``systems/data`` of aiconfigurator-core, installed or below ``given``.

    Raises:
        ValueError: neither is there.
    """
    if given is None:
        found = importlib.util.find_spec("aiconfigurator_core")
        if found is None or found.origin is None:
            raise ValueError("aiconfigurator_core is not installed; install aiconfigurator-core or give its folder")
        given = Path(found.origin).parent
    for folder in (given, given / "systems" / "data", given / "aiconfigurator_core" / "systems" / "data"):
        if (folder / "h100_sxm").is_dir():
            return folder
    raise ValueError(f"{given}: neither it nor systems/data below it has the folders of aiconfigurator's systems")


def former_folder(given: Path) -> Path:
    """``systems/data`` of aiconfigurator 0.8.0, below ``given``.

    Raises:
        ValueError: it is not there.
    """
    for folder in (given, given / "systems" / "data", given / "aiconfigurator" / "systems" / "data"):
        if (folder / "b200_sxm" / "sglang").is_dir():
            return folder
    raise ValueError(f"{given}: neither it nor systems/data below it has the folders of aiconfigurator 0.8.0")


def fit_shipped(
    accelerator_name: str,
    engine: EngineName,
    data: Path,
    *,
    version: str,
    as_of: datetime.date,
    former: Path | None = None,
    said: Callable[[str], None] = lambda text: None,
) -> LatencyProfileSpec:
    """The profile of one accelerator and engine.

    Args:
        accelerator_name: of the catalogue.
        engine: whose kernels.
        data: tables of aiconfigurator-core.
        version: of that package.
        as_of: day on which the tables were read.
        former: tables of engines' former versions (``former_folder``); what rests on them stays as it is shipped where
            absent.
        said: told of each fit.

    Raises:
        ValueError: the tables lack a family that every step has.
    """
    board, catalogue = BOARDS[accelerator_name], Catalogue()
    measured_name = next(name for name, other in BOARDS.items() if other.system == board.system)
    target = Target(
        measured_name,
        catalogue.get("Accelerator", measured_name).spec,
        BOARDS[measured_name].multiprocessors,
        engine,
    )
    order = [engine, *(other for other in ENGINES if other != engine)]
    measured = []
    for name in order:
        tables = read_aiconfigurator(data, board.system, name)
        measured.append(Measured(name, newest_version(tables), tables))
    profile = build_profile(
        target,
        measured,
        catalogue.get("LatencyProfile", "roofline").spec,
        source=SOURCE.format(version=version),
        as_of=as_of,
        said=said,
        lent=LENT.get((accelerator_name, engine), {}),
    )
    if board.of_another:
        profile = carried_over(profile, accelerator_name, board)
    key = (accelerator_name, engine)
    profile = _with_former_products(profile, key, target)
    profile = _with_former_sparse(profile, key, former, target, said)
    profile = _with_former_experts(profile, key, data, target, said)
    profile = _with_all_reduces(profile, key, data, board.system)
    return with_hosts(_with_quantise(profile, key, data, board))


def _with_former_products(
    profile: LatencyProfileSpec, key: tuple[str, EngineName], target: Target
) -> LatencyProfileSpec:
    """``profile`` with the products of versions that ran other kernels; x is quantised as before the present ones."""
    laws = profile.laws
    assert laws is not None
    found: dict[str, dict[str, GemmTerms]] = {}
    for before, formats in FORMER_PRODUCTS.get(key, {}).items():
        found[before] = {}
        for dtype, published in formats.items():
            layout = FORMATS[dtype]
            passes = laws.gemm[dtype].quantise_bandwidth
            found[before][dtype] = products(published, layout, target.sheet(layout.rate), passes)
    return profile.model_copy(update={"laws": laws.model_copy(update={"former_gemm": found})})


def _with_former_sparse(
    profile: LatencyProfileSpec,
    key: tuple[str, EngineName],
    former: Path | None,
    target: Target,
    said: Callable[[str], None],
) -> LatencyProfileSpec:
    """``profile`` with the sparse attention of versions that ran other kernels."""
    if key not in FORMER_SPARSE:
        return profile
    laws = profile.laws
    assert laws is not None
    if former is None:
        shipped: LatencyProfileSpec = Catalogue().get("LatencyProfile", f"{key[1]}-{key[0]}").spec
        found = shipped.laws.former_sparse if shipped.laws is not None else {}
        said("sparse_attention of former versions: no tables of them, so as shipped")
    else:
        found = {
            before: sparse_attention(
                read_former_sparse(former, BOARDS[key[0]].system, key[1], version), laws.gemm, laws.mla_prefill, target,
                said,
            )
            for before, version in FORMER_SPARSE[key].items()
        }  # fmt: skip
    return profile.model_copy(update={"laws": laws.model_copy(update={"former_sparse": found})})


def _with_former_experts(
    profile: LatencyProfileSpec,
    key: tuple[str, EngineName],
    data: Path,
    target: Target,
    said: Callable[[str], None],
) -> LatencyProfileSpec:
    """``profile`` with the experts of versions that ran other kernels."""
    if key not in FORMER:
        return profile
    laws, system = profile.laws, BOARDS[key[0]].system
    assert laws is not None
    found = {}
    for before, former in FORMER[key].items():
        frame, source = read_experts(data, system, key[1], former.table)
        frame = frame[frame["source"].str.contains(former.kernel)]
        found[before] = experts(former.formats, target, frame, source, said)
        if former.experts is not None:
            shorter_s = shorter_launch(frame, former.formats, former.experts)
            for dtype, terms in found[before].items():
                found[before][dtype] = terms.model_copy(update={"launch_s": terms.launch_s - shorter_s})
    return profile.model_copy(update={"laws": laws.model_copy(update={"former_moe": found})})


def shorter_launch(frame: pd.DataFrame, formats: tuple[str, ...], count: int) -> float:
    """Seconds that a step of one token is shorter with ``count`` experts than in the rows of these ``formats``.

    Kernels that align tokens by expert take longer with more experts, whatever their width: Marlin's 28 us with 128 on
    an L40S, 39 with 384 and 61 with 896 on an H100. Straight through the shortest of each number of experts, of all
    formats.
    """
    one = frame[(frame["tokens"] == 1) & (frame["sets"] == 1)]
    shortest = one.groupby("experts")["latency_s"].min()
    slope, at_none = np.polyfit(shortest.index.to_numpy(np.float64), shortest.to_numpy(), 1)
    known = one[one["dtype"].isin(formats)]["experts"].min()
    return float(shortest[known] - (at_none + slope * count))


def _with_quantise(
    profile: LatencyProfileSpec, key: tuple[str, EngineName], data: Path, board: Board
) -> LatencyProfileSpec:
    """``profile`` with the passes of versions that quantised activations apart."""
    if key not in FORMER_QUANTISE:
        return profile
    laws = profile.laws
    assert laws is not None
    frame, source = read_quantise(data, board.system, key[1])
    sheet = Sheet(laws.multiprocessors, laws.flops, laws.memory_bandwidth_bytes_per_s)
    update = {"former_quantise": {FORMER_QUANTISE[key]: quantise(frame, source, sheet)}}
    return profile.model_copy(update={"laws": laws.model_copy(update=update)})


def _with_all_reduces(
    profile: LatencyProfileSpec, key: tuple[str, EngineName], data: Path, system: str
) -> LatencyProfileSpec:
    """``profile`` with the engine's all-reduce before certain versions, and the one that normalises on the way."""
    laws = profile.laws
    assert laws is not None
    update: dict[str, object] = {}
    if key in FORMER_ALL_REDUCE:
        update["former_all_reduce"] = {
            before: curves_of(read_all_reduce(data, system, key[1], version))
            for before, version in FORMER_ALL_REDUCE[key].items()
        }
    if key in FUSED_ALL_REDUCE:
        tables = read_aiconfigurator(data, system, FUSED_ALL_REDUCE[key])
        rows = tables.frames["collectives"]
        fused = curves_of(rows[rows["collective"] == "all_reduce"])
        most = VLLM_FUSED_MIB[key[0]] if key[1] == "vllm" else {}
        update["fused_all_reduce"] = [
            curve.model_copy(update={"up_to_bytes": most[curve.ranks] * 2.0**20}) if curve.ranks in most else curve
            for curve in fused
        ]
    return profile.model_copy(update={"laws": laws.model_copy(update=update)})


def carried_over(profile: LatencyProfileSpec, accelerator_name: str, board: Board) -> LatencyProfileSpec:
    """``profile`` for another accelerator of the same architecture, by that one's sheet; without its collectives.

    Cross-validated errors are of the accelerator that was measured, so that none are stated.
    """
    laws = profile.laws
    assert laws is not None
    spec = Catalogue().get("Accelerator", accelerator_name).spec
    assumed = {"evidence": "assumed", "error": None}
    families = {
        name: {dtype: terms.model_copy(update=assumed) for dtype, terms in getattr(laws, name).items()}
        for name in (
            "gemm",
            "prefill_attention",
            "decode_attention",
            "mla_prefill",
            "mla_decode",
            "sparse_attention",
            "moe",
            "linear_attention",
        )
    }
    carried: LawsSpec = laws.model_copy(
        update={
            **families,
            "accelerator": accelerator_name,
            "multiprocessors": board.multiprocessors,
            "flops": spec.peak_flops["bf16"],
            "memory_bandwidth_bytes_per_s": spec.memory_bandwidth_bytes_per_s,
            "collectives": None,
        }
    )
    notes = f"No measurements of {accelerator_name}: laws of {laws.accelerator}, scaled by its sheet, an assumption. "
    provenance = profile.provenance.model_copy(update={"notes": notes + profile.provenance.notes})
    update = {"laws": carried, "evidence": "assumed", "relative_error": 0.25, "provenance": provenance}
    return profile.model_copy(update=update)
