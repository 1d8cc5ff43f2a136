"""Laws of attention with other heads, fitted on rows that a known law made."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from hisearch.calibrate.heads import decode_terms, prefill_terms
from hisearch.latency.laws.attention import Heads, decode_s, prefill_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.machines.laws import DecodeTerms, PrefillTerms

SHEET = Sheet(multiprocessors=132, flops=989e12, bytes_per_s=3.35e12)
PREFILL = PrefillTerms(
    source="made up", launch_s=9e-6, flops=0.3, rate_64=1, rate_256=1, bandwidth=0.6, pad_tokens=60, tile_s=3e-6,
    longest_share=0.6, sharpness=2,
)  # fmt: skip
DECODE = DecodeTerms(
    source="made up", launch_s=1e-5, fill_s=4e-6, fill_tokens=900, bandwidth=0.8, rate_64=1, rate_256=1, flops=0.3,
    unit_s=3e-6, head_s=2e-7, serial_token_s=1e-11, sharpness=2, cache_bytes=4e7, cache_speedup=2, cached_fill=0.5,
)  # fmt: skip


def rows(width: int, window: int, *, prompts: bool) -> pd.DataFrame:
    """Measured seconds of several heads, batches and lengths, by the made-up terms."""
    made = []
    shapes = ((4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4))
    for (heads, kv_heads), batch, tokens in itertools.product(shapes, (1, 4, 16, 64), (128, 512, 2048, 8192)):
        shape = Heads(heads, kv_heads, float(width), 4.0 * kv_heads * width)
        limit, count = (float(window) if window else np.inf), np.array([float(tokens)])
        if prompts:
            seconds = prefill_s(PREFILL, SHEET, shape, float(batch), count, np.zeros(1), limit)
        else:
            many = np.array([float(batch)])
            seconds = decode_s(DECODE, SHEET, shape, many, many * np.minimum(count, limit), warm=True)
        made.append((heads, kv_heads, batch, tokens, tokens, float(seconds[0])))
    names = ["heads", "kv_heads", "batch", "new_tokens", "context_tokens", "latency_s"]
    return pd.DataFrame(made, columns=names)


@pytest.mark.parametrize(("width", "window"), [(512, 0), (256, 1024)])
def test_a_fit_finds_the_law_that_made_the_rows(width: int, window: int) -> None:
    """On shapes held out too; coefficients are those of the heads alone, without rates of other widths."""
    prefill = prefill_terms(rows(width, window, prompts=True), width, window, 2.0, SHEET, "made up")
    decode = decode_terms(rows(width, window, prompts=False), width, window, 2.0, SHEET, "made up")
    for terms in (prefill, decode):
        assert terms.error is not None
        assert terms.error.median < 0.02
        assert (terms.rate_64, terms.rate_256) == (1.0, 1.0)
    assert prefill.flops == pytest.approx(PREFILL.flops, rel=0.05)
    assert decode.bandwidth == pytest.approx(DECODE.bandwidth, rel=0.1)


def test_another_window_is_another_law() -> None:
    """Rows behind a window are not explained by full attention."""
    behind = rows(256, 1024, prompts=False)
    wrong = decode_terms(behind, 256, 0, 2.0, SHEET, "made up")
    right = decode_terms(behind, 256, 1024, 2.0, SHEET, "made up")
    assert right.error is not None
    assert wrong.error is not None
    assert right.error.fitted_median < 0.5 * wrong.error.fitted_median
