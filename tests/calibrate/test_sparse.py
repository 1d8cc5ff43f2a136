"""Sparse attention found again in made-up blocks, in our own form and in aiconfigurator's."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_build import PREFILL, SHEET, write_own_tables

from hisearch.calibrate.profiles import calibrate_own
from hisearch.calibrate.sparse import Laws, products_s, sparse
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import dense_s, indexer, sparse_decode_s, sparse_prefill_s
from hisearch.latency.sharding import shard
from hisearch.specs.base import DType
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import GemmTerms, SparsePhase, SparseTerms
from hisearch.specs.models.model import ModelSpec
from refit.aic_tables import read_aiconfigurator

pytestmark = pytest.mark.slow

MODELS: dict[str, ModelSpec] = {name: Catalogue().get("Model", name).spec for name in ("deepseek-v3.2", "glm-5")}
GEMM = GemmTerms(
    source="made up", launch_s=2e-6, fill_s=3e-6, fill_depth=1000, bandwidth=0.8, flops=0.7,
    tile_losses=(0.1, 0.2, 0.3), wave_s=1e-6, quantisation=0.5, sharpness=4,
)  # fmt: skip
MADE = SparseTerms(
    source="made up", launch_s=40e-6, heads=[8, 16, 32, 64],
    prefill=SparsePhase(token_s=8e-8, score_flops=0.5, choose_s=1e-11, read_s=[1e-10, 1.5e-10, 2e-10, 4e-10]),
    decode=SparsePhase(token_s=1e-7, score_flops=0.4, choose_s=4e-11, read_s=[1.2e-10, 2e-10, 3e-10, 6e-10]),
    serial_score_s=3e-10, serial_read_s=4e-9, beyond_s=3e-5, dense_short=True,
)  # fmt: skip
#: A block whose kernels the host launches one by one takes at least this long.
HOST_S = 9e-4


def sheet(rate: DType) -> Sheet:
    return SHEET._replace(flops=2e15 if rate == "fp8" else 1e15)


def blocks(*, launched: bool = False) -> pd.DataFrame:
    """Blocks of ``MADE``; ``launched``: prompts, and batches of decodes beyond 256, at the host's pace."""
    timed = []
    prompts = itertools.product((1, 4, 16), (16, 128, 512, 2048, 8192), (0, 512, 4096, 65536))
    decodes = itertools.product((1, 8, 64, 256, 512), (1,), (128, 1024, 4096, 16384, 131072))
    rows = [("prefill", *row) for row in prompts if row[0] * row[1] <= 32768] + [("decode", *row) for row in decodes]
    laws = {"bf16": GEMM, "fp8_block": GEMM}
    for (name, model), heads, dtype in itertools.product(MODELS.items(), MADE.heads, ("bf16", "fp8_block")):
        sharded = shard(model, model.attention_heads // heads)
        reader = indexer(model, sharded)
        for phase, batch, new, cached in rows:
            b, n, c = (np.array([float(value)]) for value in (batch, new, cached))
            seconds = MADE.launch_s + float(products_s(model, sharded, laws, dtype, sheet, b * n)[0])
            if phase == "decode":
                seconds += float(sparse_decode_s(MADE, sheet("fp8"), reader, b, b * (c + 1.0))[0])
                slow = batch > 256
            elif cached + new <= reader.topk:
                seconds += float(dense_s(model, sharded, PREFILL, sheet("bf16"), b, n, c)[0])
                slow = True
            else:
                seconds += float(sparse_prefill_s(MADE, sheet("fp8"), reader, b, n, c)[0])
                slow = True
            if launched and slow:
                seconds = max(seconds, HOST_S) * (1.0 if phase == "prefill" else 3.5)
            timed.append((name, dtype, "bf16", phase, batch, new, cached, heads, seconds))
    names = ["model", "dtype", "kv_dtype", "phase", "batch", "new_tokens", "cached_tokens", "heads", "latency_s"]
    return pd.DataFrame(timed, columns=names)


@pytest.mark.parametrize("launched", [False, True])
def test_made_up_blocks_are_found_again(*, launched: bool) -> None:
    laws = Laws({"bf16": GEMM, "fp8_block": GEMM}, PREFILL)
    law = sparse(blocks(launched=launched), MODELS, laws, sheet, "made up")
    assert law.error is not None
    assert law.error.median < 0.02
    assert law.dense_short
    assert law.heads == MADE.heads
    assert law.launch_s == pytest.approx(MADE.launch_s, rel=0.05)
    assert law.decode.read_s == pytest.approx(MADE.decode.read_s, rel=0.1)
    assert law.prefill.read_s == pytest.approx(MADE.prefill.read_s, rel=0.1)


def test_engines_that_score_every_prompt_are_recognised() -> None:
    frame = blocks()
    short = (frame["phase"] == "prefill") & (frame["cached_tokens"] + frame["new_tokens"] <= 2048)
    law = sparse(
        frame[~short | (frame["new_tokens"] < 0)],
        MODELS,
        Laws({"bf16": GEMM, "fp8_block": GEMM}, None),
        sheet,
        "made up",
    )
    assert not law.dense_short


def test_tables_of_one_s_own_have_a_law(tmp_path: Path) -> None:
    folder = write_own_tables(tmp_path / "tables")
    blocks().to_parquet(folder / "sparse_attention.parquet")
    profile = calibrate_own(
        folder, accelerator="h100-sxm", engine="sglang", engine_version="1", multiprocessors=132, source="made up"
    ).profile
    assert profile.laws is not None
    assert set(profile.laws.sparse_attention) == {"bf16"}


def test_too_few_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="made up: 20 blocks show the device, 30 are needed"):
        sparse(
            blocks().query("phase == 'decode'").head(20),
            MODELS,
            Laws({"bf16": GEMM, "fp8_block": GEMM}, None),
            sheet,
            "made up",
        )


def test_aiconfigurator_s_blocks_are_read(tmp_path: Path) -> None:
    columns = {
        "kernel_source": "k", "model": "zai-org/GLM-5-FP8", "kv_cache_dtype": "fp8", "gemm_type": "fp8_block",
        "num_heads": 8, "batch_size": 2, "latency": 0.5,
    }  # fmt: skip
    folder = tmp_path / "h100_sxm" / "sparse_attention" / "sglang" / "0.5.14"
    folder.mkdir(parents=True)
    for table, isl, step in (("dsa_context_module", 512, 1024), ("dsa_generation_module", 1, 4095)):
        rows = [columns | {"op_name": name, "isl": isl, "step": step} for name in (table, f"{table}_skip_indexer")]
        pd.DataFrame(rows).to_parquet(folder / f"{table}_perf.parquet")
    gemm = tmp_path / "h100_sxm" / "gemm" / "sglang" / "0.5.14"
    gemm.mkdir(parents=True)
    pd.DataFrame([{"gemm_dtype": "bfloat16", "m": 1, "n": 512, "k": 512, "latency": 0.01}]).to_parquet(
        gemm / "gemm_perf.parquet"
    )
    tables = read_aiconfigurator(tmp_path, "h100_sxm", "sglang")
    frame = tables.frames["sparse_attention"].set_index("phase")
    assert len(frame) == 2
    assert frame.loc["prefill", ["model", "cached_tokens", "new_tokens"]].tolist() == ["glm-5", 1024, 512]
    assert frame.loc["decode", ["cached_tokens", "heads", "latency_s"]].tolist() == [4095, 8, 0.0005]
    assert tables.sources["sparse_attention"].startswith("h100_sxm/sparse_attention/sglang/0.5.14/")
