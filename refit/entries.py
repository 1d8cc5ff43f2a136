"""Laws of attention that reads compressed entries or chosen blocks, from aiconfigurator's tables of whole blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import yaml

from hisearch.calibrate.build import Target
from hisearch.calibrate.entries import entries_terms
from hisearch.calibrate.writing import profile_yaml
from hisearch.latency.laws.model import law_of
from hisearch.specs.base import DType, EngineName
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import EntriesTerms, GemmTerms
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.wording import format_percent
from refit.aic_files import DTYPES, newest_first, read
from refit.boards import BOARDS

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["compressed", "block_sparse"]


class Blocks(NamedTuple):
    """Tables of one kind: folder, names by phase and by tokens of an entry, models by aiconfigurator's names."""

    folder: str
    tables: dict[tuple[str, int], str]
    models: dict[str, str]


KINDS: dict[Kind, Blocks] = {
    "compressed": Blocks(
        "sparse_attention",
        {
            ("prefill", 4): "dsv4_csa_context_module",
            ("decode", 4): "dsv4_csa_generation_module",
            ("prefill", 128): "dsv4_hca_context_module",
            ("decode", 128): "dsv4_hca_generation_module",
        },
        {
            "sgl-project/DeepSeek-V4-Flash-FP8": "deepseek-v4-flash",
            "sgl-project/DeepSeek-V4-Pro-FP8": "deepseek-v4-pro",
        },
    ),
    "block_sparse": Blocks(
        "msa",
        {("prefill", 1): "msa_context_module", ("decode", 1): "msa_generation_module"},
        {"MiniMaxAI/MiniMax-M3": "minimax-m3"},
    ),
}
#: Formats by aiconfigurator's names in these tables.
FORMATS = DTYPES | {"fp8_e4m3": "fp8"}
#: Heads of a rank in real shards.
HEADS = (8, 16, 32, 64, 128)


def read_blocks(data: Path, system: str, engine: str, kind: Kind) -> tuple[pd.DataFrame, str] | None:
    """Blocks of the newest version that measured all tables of ``kind``, and their name; None where none did."""
    import pandas as pd

    blocks, parts = KINDS[kind], []
    first, *_ = blocks.tables.values()
    for path in newest_first(data / system / blocks.folder / engine, f"{first}_perf"):
        files = {key: path.with_name(f"{name}_perf.parquet") for key, name in blocks.tables.items()}
        if not all(file.exists() for file in files.values()):
            continue
        for (phase, ratio), file in files.items():
            frame = read(file)
            frame = frame[frame["model"].isin(list(blocks.models)) & frame["gemm_type"].isin(list(FORMATS))]
            frame = frame[frame["kv_cache_dtype"].isin(list(FORMATS)) & frame["heads"].isin(HEADS)]
            parts.append(
                frame.assign(
                    phase=phase, ratio=ratio, cached_tokens=frame["step"], model=frame["model"].map(blocks.models),
                    dtype=frame["gemm_type"].map(FORMATS), kv_dtype=frame["kv_cache_dtype"].map(FORMATS),
                )
            )  # fmt: skip
        name = f"{system}/{blocks.folder}/{engine}/{path.parent.name}/{first.split('_')[0]}_*_module_perf"
        return pd.concat(parts, ignore_index=True), name
    return None


def fit_entries(
    target: Target,
    data: Path,
    system: str,
    gemm: Mapping[str, GemmTerms],
    report: Callable[[str], None] = lambda text: None,
) -> dict[Kind, dict[str, EntriesTerms]]:
    """Laws by kind and format of the KV cache, of the target's engine; {} where it was not measured."""
    laws: dict[Kind, dict[str, EntriesTerms]] = {}
    for kind, blocks in KINDS.items():
        table = read_blocks(data, system, target.engine, kind)
        if table is None:
            continue
        frame, source = table
        models = {name: Catalogue().get("Model", name).spec for name in blocks.models.values()}
        most = {name: model.attention_heads for name, model in models.items()}
        frame = frame[frame["heads"] <= frame["model"].map(most)]
        frame = frame[frame["dtype"].map(lambda name: law_of(gemm, name) is not None)]
        for kv_dtype in sorted(set(frame["kv_dtype"])):
            rows = frame[frame["kv_dtype"] == kv_dtype].reset_index(drop=True)
            terms = entries_terms(rows, models, gemm, _dtype(kv_dtype), target.sheet, source)
            laws.setdefault(kind, {})[kv_dtype] = terms
            assert terms.error is not None
            medians = (terms.error.decode_median or 0.0, terms.error.prefill_median or 0.0)
            report(
                f"{kind} {kv_dtype}, {source}: median of decodes and prompts {', '.join(map(format_percent, medians))}"
            )
    return laws


def _dtype(name: str) -> DType:
    return "fp8" if name == "fp8" else "bf16"


def refit_entries(
    into: Path, data: Path, engines: tuple[EngineName, ...], report: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Fit these laws anew in the profiles below ``into``, whose other laws stay; the files that changed."""
    written = []
    for accelerator, board in BOARDS.items():
        spec = Catalogue().get("Accelerator", accelerator).spec
        for engine in engines:
            path = into / f"{engine}-{accelerator}.yaml"
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
            profile = LatencyProfileSpec.model_validate(document["spec"])
            assert profile.laws is not None
            target = Target(accelerator, spec, board.multiprocessors, engine)
            fitted = fit_entries(target, data, board.system, profile.laws.gemm, report)
            if not fitted and not profile.laws.entries_attention:
                continue
            laws = profile.laws.model_copy(update={"entries_attention": fitted})
            metadata = document["metadata"]
            text = profile_yaml(metadata["name"], metadata["description"], profile.model_copy(update={"laws": laws}))
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written
