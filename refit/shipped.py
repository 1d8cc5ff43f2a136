"""Fits the profiles that hisearch ships, for each accelerator and engine."""

from __future__ import annotations

import datetime
import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.build import Measured, Target, build_profile, curves_of
from hisearch.calibrate.tables import Tables
from hisearch.specs.base import EngineName
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.laws import CollectiveCurve, MixedTerms
from hisearch.specs.machines.profile import CollectiveTerms, LatencyProfileSpec
from refit.aic_collectives import read_all_reduce, read_collectives, read_exchange
from refit.aic_heads import other_heads
from refit.aic_tables import read_aiconfigurator
from refit.boards import BOARDS
from refit.entries import fit_entries
from refit.former import Sources, with_former
from refit.hosts import with_hosts

if TYPE_CHECKING:
    import pandas as pd

#: Provenance and attribution of the tables.
SOURCE = (
    "Fitted on operator latencies of aiconfigurator-core {version} (systems/data; Copyright NVIDIA CORPORATION & "
    "AFFILIATES; Apache-2.0)"
)

#: A send between pipeline stages, without its bytes; assumed.
SEND_S = 12e-6

#: Engines in the order in which they replace missing tables of another.
ENGINES: tuple[EngineName, ...] = ("sglang", "trtllm", "vllm")


#: Accelerators of Blackwell, whose tables hold the same kernels under each engine.
BLACKWELL = ("b200", "b300", "gb200", "gb300")


#: (accelerator, engine) -> (family, format) -> engine whose tables hold the kernels that are run. On Blackwell:
#: vLLM multiplies MXFP4 experts with MXFP8 activations, as SGLang does. Its own table of the models' widths has 16-bit
#: activations. TensorRT-LLM runs its own kernels for experts in fp8 blocks and NVFP4 (``moe_config.backend: TRTLLM``),
#: as SGLang does (``flashinfer_trtllm``). Its own tables have DeepGEMM's and, in NVFP4, routing by groups for every
#: model.
LENT: dict[tuple[str, EngineName], dict[tuple[str, str], EngineName]] = {
    **{(name, "vllm"): {("moe", "fp4"): "sglang"} for name in BLACKWELL},
    **{(name, "trtllm"): {("moe", "fp8_block"): "sglang", ("moe", "nvfp4"): "sglang"} for name in BLACKWELL},
}


#: (accelerator, engine) -> version -> version whose table has the all-reduce of versions before it. SGLang's all-reduce
#: of 256 KiB on 8 ranks of a B200 took 26 us in 0.5.9 and 0.5.10, and takes 8.5 us in 0.5.14.
FORMER_ALL_REDUCE: dict[tuple[str, EngineName], dict[str, str]] = {
    (name, "sglang"): {"0.5.14": "0.5.10"} for name in BLACKWELL
}


#: (accelerator, engine) -> engine whose table has the fused all-reduce and norm. SGLang and vLLM run FlashInfer's on
#: request (``--enable-flashinfer-allreduce-fusion``, ``fuse_allreduce_rms``), which is TensorRT-LLM's.
FUSED_ALL_REDUCE: dict[tuple[str, EngineName], EngineName] = {
    **dict.fromkeys(itertools.product(BLACKWELL, ("sglang", "vllm")), "trtllm"),
    ("h100-sxm", "vllm"): "trtllm",
    ("h200", "vllm"): "trtllm",
}


#: Accelerator -> ranks -> MiB up to which vLLM fuses (``FI_ALLREDUCE_FUSION_MAX_SIZE_MB``, by compute capability). It
#: does not fuse at other numbers of ranks.
VLLM_FUSED_MIB: dict[str, dict[int, float]] = {
    "b200": {2: 64, 4: 32, 8: 1},
    "b300": {2: 64, 4: 64, 8: 2},
    "gb200": {2: 64, 4: 32, 8: 1},
    "gb300": {2: 64, 4: 64, 8: 2},
    "h100-sxm": {2: 64, 4: 2, 8: 0.5},
    "h200": {2: 64, 4: 2, 8: 0.5},
}


#: Accelerator -> systems whose collectives stand for its own. The first that measured a number of ranks counts.
#: A tray of NVL72 has four ranks. GB300's all-reduces were measured on up to 16, over several trays. NCCL's other
#: collectives on more than four ranks come from B300, whose eight are assumed to be as close by NVLink. GB200's own
#: tables have at most four ranks and equal GB300's, except vLLM's all-reduce of 0.19.0 and 0.24.0: for 1 GiB on two
#: ranks it takes 2.8 times as long as that of 0.14.0 and all others.
LINKS: dict[str, tuple[str, ...]] = {"gb200": ("gb300", "b300_sxm"), "gb300": ("gb300", "b300_sxm")}


#: Accelerators on which vLLM runs FlashAttention 2, and the law of its decodes in mixed steps: medians of six tables
#: that `validate batch` reads (rate 0.53 to 0.60, start 5.8 to 6.5 us). aiconfigurator has no such tables.
FLASH_ATTENTION_2 = ("a100-80gb", "l40s", "rtx-pro-6000")
MIXED_ATTENTION = MixedTerms(
    evidence="fitted",
    source="six tables of decodes in mixed steps, vLLM 0.19.0 on an RTX PRO 6000 (LLMServingSim, github "
    "casys-kaist/LLMServingSim at 5daddb2, MIT)",
    rows=64,
    keys=64,
    flops=0.574,
    tile_s=6.3e-6,
)


def data_folder(given: Path | None) -> Path:
    """``systems/data`` of aiconfigurator-core, installed or below ``given``.

    Raises:
        ValueError: neither is there.
    """
    if given is None:
        module_spec = importlib.util.find_spec("aiconfigurator_core")
        if module_spec is None or module_spec.origin is None:
            raise ValueError("aiconfigurator_core is not installed: install aiconfigurator-core, or give its folder")
        given = Path(module_spec.origin).parent
    for folder in (given, given / "systems" / "data", given / "aiconfigurator_core" / "systems" / "data"):
        if (folder / "h100_sxm").is_dir():
            return folder
    raise ValueError(f"{given}: neither it nor systems/data below it has the folders of aiconfigurator's systems")


def fit_shipped(
    accelerator_name: str,
    engine: EngineName,
    data: Path,
    *,
    version: str,
    as_of: datetime.date,
    former: Path | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> LatencyProfileSpec:
    """The profile of one accelerator and engine.

    Args:
        accelerator_name: of the catalogue.
        engine: whose kernels.
        data: tables of aiconfigurator-core.
        version: of that package.
        as_of: day on which the tables were read.
        former: tables of engines' former versions (``former_folder``); None: laws fitted on them stay as shipped.
        report: called with a line about each fit.

    Raises:
        ValueError: the tables lack a family that every step has.
    """
    board, catalogue = BOARDS[accelerator_name], Catalogue()
    measured_name = next(name for name, known_board in BOARDS.items() if known_board.system == board.system)
    target = Target(
        measured_name,
        catalogue.get("Accelerator", measured_name).spec,
        BOARDS[measured_name].multiprocessors,
        engine,
    )
    order = [engine, *(lender for lender in ENGINES if lender != engine)]
    measured = []
    for name in order:
        tables = _with_links(read_aiconfigurator(data, board.system, name), accelerator_name, data, name)
        # The engine's version is the folder of its GEMM table.
        measured.append(Measured(name, Path(tables.sources["gemm"]).parent.name, tables))
    profile = build_profile(
        target,
        measured,
        catalogue.get("LatencyProfile", "roofline").spec,
        source=SOURCE.format(version=version),
        as_of=as_of,
        report=report,
        lent=LENT.get((accelerator_name, engine), {}),
    )
    key = (accelerator_name, engine)
    profile = with_former(profile, key, target, Sources(data, board.system, former), report)
    profile = _with_exchange(_with_all_reduces(profile, key, data), key, data)
    assert profile.laws is not None
    update: dict[str, object] = {
        "clock_share": board.clock_share,
        "other_heads": other_heads(data, board.system, engine, target.sheet("bf16"), report),
        "entries_attention": fit_entries(target, data, board.system, profile.laws.gemm, report),
    }
    if engine == "vllm" and accelerator_name in FLASH_ATTENTION_2:
        update["mixed_attention"] = MIXED_ATTENTION
    return with_hosts(
        profile.model_copy(
            update={
                "laws": profile.laws.model_copy(update=update),
                "all_reduce": _send_terms(profile.all_reduce, catalogue.get("Accelerator", accelerator_name).spec),
            }
        )
    )


def _send_terms(terms: CollectiveTerms, accelerator: AcceleratorSpec) -> CollectiveTerms:
    """Of sends between stages, which no table has: ``SEND_S`` with the link's latency."""
    return terms.model_copy(update={"alpha_s": round(SEND_S - accelerator.peer_link.latency_s, 9)})


def _with_links(tables: Tables, accelerator_name: str, data: Path, engine: EngineName) -> Tables:
    """``tables`` with the collectives of ``link_collectives``."""
    if accelerator_name not in LINKS:
        return tables
    frame, source = link_collectives(accelerator_name, data, engine)
    return Tables(tables.frames | {"collectives": frame}, tables.sources | {"collectives": source})


def link_collectives(accelerator_name: str, data: Path, engine: EngineName) -> tuple[pd.DataFrame, str]:
    """Collectives of an accelerator's links under one engine, and the tables' names.

    Raises:
        ValueError: none were measured.
    """
    import pandas as pd

    systems = LINKS.get(accelerator_name, (BOARDS[accelerator_name].system,))
    parts, sources = [], []
    covered: set[tuple[str, int]] = set()
    for system in systems:
        table = read_collectives(data, system, engine)
        if table is None:
            continue
        frame, source = table
        index = pd.MultiIndex.from_frame(frame[["collective", "ranks"]])
        new = set(index) - covered
        if new:
            parts.append(frame[index.isin(list(new))])
            added = {ranks for _, ranks in new}, {name for name, _ in new}
            note = (
                f" ({', '.join(sorted(added[1]))} on {', '.join(map(str, sorted(added[0])))} ranks)" if covered else ""
            )
            sources.append(f"{system}: {source}{note}")
        covered |= new
    if not parts:
        raise ValueError(f"{data}: no collectives of system {', '.join(systems)} and engine {engine}")
    return pd.concat(parts), "; ".join(sources)


def _with_all_reduces(profile: LatencyProfileSpec, key: tuple[str, EngineName], data: Path) -> LatencyProfileSpec:
    """``profile`` with the engine's former all-reduces, and the fused all-reduce and norm."""
    laws, (accelerator_name, engine) = profile.laws, key
    assert laws is not None
    update: dict[str, object] = {}
    if key in FORMER_ALL_REDUCE:
        present = laws.collectives.all_reduce if laws.collectives is not None else []
        update["former_all_reduce"] = {
            before: with_more_ranks(
                curves_of(read_all_reduce(data, BOARDS[accelerator_name].system, engine, version)), present
            )
            for before, version in FORMER_ALL_REDUCE[key].items()
        }
    if key in FUSED_ALL_REDUCE:
        rows, _ = link_collectives(accelerator_name, data, FUSED_ALL_REDUCE[key])
        fused = curves_of(rows[rows["collective"] == "all_reduce"])
        if engine == "vllm":
            most = VLLM_FUSED_MIB[accelerator_name]
            fused = [
                curve.model_copy(update={"up_to_bytes": most[curve.ranks] * 2.0**20})
                for curve in fused
                if curve.ranks in most
            ]
        update["fused_all_reduce"] = fused
    return profile.model_copy(update={"laws": laws.model_copy(update=update)})


#: Accelerator -> accelerator with the same links whose all-to-all stands for its own.
EXCHANGE_OF = {"gb300": "gb200"}


def _with_exchange(profile: LatencyProfileSpec, key: tuple[str, EngineName], data: Path) -> LatencyProfileSpec:
    """``profile`` with the experts' all-to-all, where measured."""
    laws, (accelerator_name, engine) = profile.laws, key
    assert laws is not None
    names = (accelerator_name, EXCHANGE_OF.get(accelerator_name, accelerator_name))
    tables = next(filter(None, (read_exchange(data, BOARDS[name].system, engine) for name in names)), None)
    if tables is None:
        return profile
    exchange = {dtype: curves_of(rows) for dtype, rows in tables[0].items()}
    return profile.model_copy(update={"laws": laws.model_copy(update={"expert_exchange": exchange})})


def with_more_ranks(curves: list[CollectiveCurve], others: list[CollectiveCurve]) -> list[CollectiveCurve]:
    """``curves``, and those of ``others`` for more ranks: across hosts, engines leave all-reduces to NCCL."""
    most = max(curve.ranks for curve in curves)
    return [*curves, *(curve for curve in others if curve.ranks > most)]
