"""The fit of attention that reads entries or blocks: coefficients come back from blocks that the law made."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from hisearch.calibrate.build import Target
from hisearch.calibrate.entries import entries_terms
from hisearch.calibrate.sparse import HOST_BLOCK_S
from hisearch.latency.laws.entries import Sheets, entries_decode_s, entries_prefill_s, layer_launch_s
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.operators import attention_shape
from hisearch.latency.parameters import attention_matrices
from hisearch.latency.sharding import shard
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import EntriesPhase, EntriesTerms

CATALOGUE = Catalogue()
FLASH = CATALOGUE.get("Model", "deepseek-v4-flash").spec
GEMM = CATALOGUE.get("LatencyProfile", "vllm-h200").spec.laws.gemm
TARGET = Target("h200", CATALOGUE.get("Accelerator", "h200").spec, 132, "vllm")
KNOWN = EntriesTerms(
    source="made", launch_s=2e-5, index_launch_s=1e-5,
    prefill=EntriesPhase(token_s=5e-8, index_token_s=3e-8, head_token_s=2e-9, sequence_s=2e-6, read_flops=0.4,
                         score_flops=0.3),
    decode=EntriesPhase(token_s=8e-8, index_token_s=2e-8, head_token_s=1e-9, sequence_s=1e-7, read_flops=0.5,
                        score_flops=0.1),
)  # fmt: skip


def blocks() -> pd.DataFrame:
    """Blocks as ``KNOWN`` prices them, with products by the shipped laws."""
    rows = []
    sheets = Sheets(TARGET.sheet("bf16"), TARGET.sheet("fp8"))
    for heads, ratio in itertools.product((8, 16, 64), (4, 128)):
        part = shard(FLASH, 64 // heads)
        shape = attention_shape(FLASH, part, "fp8")
        kind = next(kind for kind in shape.entries if kind.ratio == ratio)
        sizes = [("prefill", b, n, c) for b in (1, 4) for n in (128, 512, 2048, 4096) for c in (0, 4096, 65536)]
        sizes += [("decode", b, 1, c) for b in (1, 8, 64, 256) for c in (128, 2048, 16384, 131072)]
        for phase, batch, new, cached in sizes:
            tokens, alone = np.array([float(batch * new)]), (KNOWN, sheets, shape, part.heads, kind)
            seconds = layer_launch_s(KNOWN, kind)
            for matrix in attention_matrices(FLASH, part):
                if matrix.name in kind.products:
                    layout = FORMATS["fp8_block" if matrix.quantised else "bf16"]
                    law = GEMM["fp8_block" if matrix.quantised else "bf16"]
                    seconds += gemm_s(
                        law, TARGET.sheet(layout.rate), tokens, float(matrix.outputs), float(matrix.inputs),
                        weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
                    )[0]  # fmt: skip
            if phase == "decode":
                context = np.array([float(batch * (cached + 1))])
                seconds += entries_decode_s(*alone, np.array([float(batch)]), context)[0]
            else:
                seconds += entries_prefill_s(*alone, float(batch), np.array([float(new)]), np.array([float(cached)]))[0]
            rows.append(("deepseek-v4-flash", "fp8_block", phase, ratio, batch, new, cached, heads, seconds))
    names = ("model", "dtype", "phase", "ratio", "batch", "new_tokens", "cached_tokens", "heads", "latency_s")
    return pd.DataFrame(rows, columns=list(names))


def fitted(frame: pd.DataFrame) -> EntriesTerms:
    return entries_terms(frame, {"deepseek-v4-flash": FLASH}, GEMM, "fp8", TARGET.sheet, "made")


def test_coefficients_come_back() -> None:
    terms = fitted(blocks())
    assert terms.error is not None
    assert terms.error.median < 0.02
    assert terms.launch_s + terms.index_launch_s == pytest.approx(3e-5, rel=0.05)
    assert terms.prefill.read_flops == pytest.approx(0.4, rel=0.05)
    assert terms.prefill.score_flops == pytest.approx(0.3, rel=0.05)
    assert terms.decode.score_flops == pytest.approx(0.1, rel=0.1)


def test_prompts_that_show_the_host_are_left_out() -> None:
    """Blocks that a host launches for a millisecond whatever they do."""
    frame = blocks()
    hidden = frame.assign(
        latency_s=np.where(frame["phase"] == "prefill", np.maximum(frame["latency_s"], 1e-3), frame["latency_s"])
    )
    assert HOST_BLOCK_S < 1e-3
    assert fitted(hidden).prefill.read_flops == pytest.approx(0.4, rel=0.1)


def test_too_few_blocks_are_refused() -> None:
    frame = blocks()
    with pytest.raises(ValueError, match="30 are needed"):
        fitted(frame[frame["phase"] == "decode"])
