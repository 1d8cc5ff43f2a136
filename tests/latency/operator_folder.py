"""A folder of made-up operator tables with a law in them, as a profiler would write it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd

#: Attention of one layer, microseconds: a launch, the chunk's pairs, the decodes' tokens; a long decode ends late.
LAUNCH_US, PAIR_US, TOKEN_US, LATE_US = 5.0, 1e-4, 1e-3, 2e-2
TOKENS = (1, 16, 64, 128, 256, 512, 1024, 2048)
LAYERS_US = {"layernorm": 1.0, "qkv_proj": 20.0, "rotary_emb": 2.0, "o_proj": 10.0, "gate_up_proj": 50.0, "act_fn": 3.0,
             "down_proj": 30.0, "embedding": 4.0, "final_layernorm": 1.0}  # fmt: skip
POWERS = (16, 64, 256, 1024, 2048)


def dense_us(layer: str, tokens: float) -> float:
    return LAYERS_US[layer] + 0.01 * tokens


def attention_us(chunk: float, before: float, decodes: int, mean: float) -> float:
    work = PAIR_US * chunk * (before + (chunk + 1) / 2) + TOKEN_US * decodes * mean
    return LAUNCH_US + work


def write_tables(folder: Path, *, moe: bool = False, skew: bool = True) -> Path:
    """``folder`` with tp1 and meta.yaml."""
    tables = folder / "tp1"
    tables.mkdir(parents=True)
    layers = [name for name in LAYERS_US if not (moe and name in ("gate_up_proj", "act_fn", "down_proj"))]
    pd.DataFrame(
        [(layer, tokens, dense_us(layer, tokens)) for layer in layers for tokens in TOKENS],
        columns=["layer", "tokens", "time_us"],
    ).to_csv(tables / "dense.csv", index=False)
    pd.DataFrame(
        [(layer, n, us + 0.1 * n) for layer, us in (("lm_head", 100.0), ("sampler", 10.0)) for n in (1, 64, 256)],
        columns=["layer", "sequences", "time_us"],
    ).to_csv(tables / "per_sequence.csv", index=False)
    rows = [(chunk, before, 0, 0) for chunk in POWERS for before in (0, *POWERS)]
    rows += [(0, 0, n, kv) for n in (1, 2, 4, 8, 16, 32, 64) for kv in POWERS]
    rows += list(itertools.product((16, 32, 64, 128, 256, 512, 1024, 2048), (0, 16, 32, 64, 128, 256, 512, 1024, 2048),
                                   (1, 2, 4, 8, 16, 32, 64), (16, 32, 64, 128, 256, 512, 1024, 2048)))  # fmt: skip
    pd.DataFrame(
        [(*row, attention_us(*row)) for row in rows],
        columns=["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"],
    ).to_csv(tables / "attention.csv", index=False)
    if moe:
        pd.DataFrame(
            [(tokens, experts, 10.0 * experts + 0.1 * tokens) for tokens in (1, 64, 2048) for experts in (1, 4, 8)],
            columns=["tokens", "activated_experts", "time_us"],
        ).to_csv(tables / "moe.csv", index=False)
    if skew:
        _skew_rows().to_csv(tables / "skew.csv", index=False)
    (folder / "meta.yaml").write_text("hardware: RTXPRO6000\nmeasurement_iterations: 3\n")
    return folder


def _skew_rows() -> pd.DataFrame:
    """Batches in which one decode is four times as long; in mixed steps the longest ends half as late as alone."""
    rows = []
    for n, chunk, short in itertools.product((2, 16, 64), (0, 256), (512, 2048)):
        longest = 4 * short
        mean = ((n - 1) * short + longest) / n
        even = attention_us(chunk, 0, n, mean)
        late = LATE_US if chunk == 0 else 0.5 * TOKEN_US
        skewed = even + late * (longest - mean)
        rows.append((n, 1, chunk, 0, longest, mean, 3 * even, 3 * skewed))
    return pd.DataFrame(rows, columns=["n", "nb", "pc", "kp", "kv_big", "kv_mean", "t_mean_us", "t_skew_us"])
