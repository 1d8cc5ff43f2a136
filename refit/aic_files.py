"""Files of aiconfigurator-core's tables: versions of a table, its rows in seconds, and names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.specs.versions import version_key

if TYPE_CHECKING:
    import pandas as pd

#: aiconfigurator's names of formats. No simulated engine setting uses the others.
DTYPES = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4_wo": "int4",
    "w4a16_mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4",
}  # fmt: skip

#: Our names of columns, by aiconfigurator's.
NAMES = {
    "kernel_source": "source", "batch_size": "batch", "isl": "new_tokens", "num_heads": "heads",
    "num_key_value_heads": "kv_heads", "num_v_heads": "value_heads", "num_tokens": "tokens", "hidden_size": "hidden",
    "topk": "per_token", "num_experts": "experts", "moe_ep_size": "sets", "num_gpus": "ranks",
}  # fmt: skip

#: Columns that older tables lack, and the value their rows have.
ABSENT: dict[str, int | str] = {"window_size": 0, "step": 0, "kernel_source": "", "distribution": "balanced"}


def newest_first(folder: Path, file: str) -> list[Path]:
    """``file`` of every version below ``folder``, newest first; release candidates come before their release."""
    return sorted(folder.glob(f"*/{file}.parquet"), key=lambda path: version_key(path.parent.name), reverse=True)


def newest(folder: Path, file: str) -> Path | None:
    """``file`` of the newest version that has it."""
    return next(iter(newest_first(folder, file)), None)


def read(path: Path) -> pd.DataFrame:
    """Measured rows of a table, see ``with_seconds``."""
    import pandas as pd

    return with_seconds(pd.read_parquet(path))


def with_seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Measured rows, in seconds, with our names of columns and with those that older tables lack."""
    frame["latency_s"] = frame["latency"] * 1e-3
    for column, value in ABSENT.items():
        if column not in frame.columns:
            frame[column] = value
    return frame[frame["latency_s"] > 0].rename(columns=NAMES)


def source_of(path: Path, data: Path) -> str:
    """A table's name: SYSTEM/FAMILY/ENGINE/VERSION/TABLE below ``data``."""
    return path.relative_to(data).with_suffix("").as_posix()
