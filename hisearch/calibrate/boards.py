"""Accelerators with a shipped profile, as the tables of operators know them."""

from __future__ import annotations

from typing import NamedTuple


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
    "b300": Board("b300_sxm", 148),
    "gb200": Board("gb200", 152),
    "gb300": Board("gb300", 152),
    "l40s": Board("l40s", 142),
    "rtx-pro-6000": Board("rtx_pro_6000_server", 188),
    "rtx4090": Board("l40s", 128, of_another=True),
}
