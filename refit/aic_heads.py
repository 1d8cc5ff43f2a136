"""Laws of attention with heads or windows that have other kernels, from aiconfigurator-core's tables.

Gemma 4 has heads of 512 beside windows of 1,024 tokens with heads of 256. MiMo-V2 has keys of 192, in some layers
behind windows of 128; they were measured with values as wide.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.calibrate.fitting import LEAST_POINTS
from hisearch.calibrate.heads import decode_terms, prefill_terms
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.base import DTYPE_BYTES, EngineName
from hisearch.specs.machines.laws import HeadLaws
from hisearch.specs.wording import format_percent
from refit.aic_files import DTYPES, newest, read, source_of

if TYPE_CHECKING:
    import pandas as pd

#: (width of a key, tokens of the window).
SHAPES = ((512, 0), (256, 1024), (192, 0), (192, 128))

#: (engine, width, kernel) that the engine does not run for these models. SGLang takes FlashAttention 4 for MiMo-V2 on
#: Blackwell (``arg_groups/model_overrides/mimo_v2.py`` of 0.5.23), where Triton was measured.
NOT_RUN = frozenset({("sglang", 192, "triton")})

#: Largest median error on held-out shapes of a law that is kept: others are no better than that of usual heads.
WORST = 0.25


def other_heads(
    data: Path, system: str, engine: EngineName, sheet: Sheet, report: Callable[[str], None] = lambda text: None
) -> list[HeadLaws]:
    """The laws of one system and engine; shapes and formats that both tables have.

    Args:
        data: tables of aiconfigurator-core.
        system: in its words.
        engine: whose kernels.
        sheet: of the accelerator, at its 16-bit peak.
        report: called with a line about each fit.
    """
    folder = data / system / "attention" / engine
    paths = [newest(folder, f"{phase}_attention_perf") for phase in ("context", "generation")]
    if paths[0] is None or paths[1] is None:
        return []
    prompts, tokens = (read(path) for path in paths if path is not None)
    prompts = prompts[prompts["step"] == 0]
    tokens = tokens.assign(context_tokens=tokens["step"] + tokens["new_tokens"])
    laws = []
    for width, window in SHAPES:
        for measured, dtype in DTYPES.items():
            rows = [_rows(frame, engine, width, window, measured) for frame in (prompts, tokens)]
            if min(map(len, rows)) < LEAST_POINTS:
                continue
            sources = [source_of(path, data) for path in paths if path is not None]
            kv_bytes = DTYPE_BYTES[dtype]
            prefill = prefill_terms(rows[0], width, window, kv_bytes, sheet, sources[0])
            decode = decode_terms(rows[1], width, window, kv_bytes, sheet, sources[1])
            errors = [terms.error.median for terms in (prefill, decode) if terms.error is not None]
            said = ", ".join(format_percent(error, 1) for error in errors)
            line = f"heads of {width}, window {window}, {dtype}: median {said}"
            if max(errors) > WORST:
                report(f"{line}: left out")
                continue
            report(line)
            laws.append(HeadLaws(head_dim=width, window_tokens=window, kv_dtype=dtype, prefill=prefill, decode=decode))
    return laws


def _rows(frame: pd.DataFrame, engine: str, width: int, window: int, measured: str) -> pd.DataFrame:
    """Rows of a shape with the KV cache in a format; of the kernels that the engine runs, with queries in 16 bits."""
    kept = (frame["head_dim"] == width) & (frame["window_size"] == window) & (frame["kv_cache_dtype"] == measured)
    if "attn_dtype" in frame.columns and (kept & (frame["attn_dtype"] == measured)).any():
        kept &= frame["attn_dtype"] == measured
    not_run = {kernel for name, known, kernel in NOT_RUN if (name, known) == (engine, width)}
    return frame[kept & ~frame["source"].isin(not_run)]
