"""Accelerators with a shipped profile, by their names in the operator tables."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.specs.machines.laws import SUSTAINED_CLOCK

#: Sustained arithmetic of a B200 as a share of its first milliseconds: FlashAttention 4 in bf16 falls from 1,450 to
#: 1,237 TFLOPS within 100 runs, the clock from 1,965 to 1,580 MHz (FlashInfer, pull request 2899). Assumed for the
#: other boards of that architecture too.
BLACKWELL_CLOCK = 0.853


class Board(NamedTuple):
    """An accelerator of the catalogue: its name in the tables, and its multiprocessors (NVIDIA's white papers).

    clock_share: see ``specs.machines.laws.LawsSpec``.
    """

    system: str
    multiprocessors: int
    clock_share: float = SUSTAINED_CLOCK


#: Accelerators with a shipped profile.
BOARDS: dict[str, Board] = {
    "a100-80gb": Board("a100_sxm", 108),
    "h100-sxm": Board("h100_sxm", 132),
    "h200": Board("h200_sxm", 132),
    "b200": Board("b200_sxm", 148, clock_share=BLACKWELL_CLOCK),
    "b300": Board("b300_sxm", 148, clock_share=BLACKWELL_CLOCK),
    "gb200": Board("gb200", 152, clock_share=BLACKWELL_CLOCK),
    "gb300": Board("gb300", 152, clock_share=BLACKWELL_CLOCK),
    "l40s": Board("l40s", 142),
    "rtx-pro-6000": Board("rtx_pro_6000_server", 188),
}
