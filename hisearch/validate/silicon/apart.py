"""One measured run with prompts and outputs made apart: prefill workers, decode workers and the network between them.

A side's workers are priced as an aggregated run's would be (``pricing``). An attention group is a worker of its own, as
there. Where a row does not say how many workers a side has, it is taken to have one of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hisearch.latency.host import with_host_times
from hisearch.simulate.fleet import PoolPlan, RoleName, TransferPlan
from hisearch.simulate.plan import WorkerPlan
from hisearch.specs.cluster import TransferSpec
from hisearch.specs.hardware import FabricSpec
from hisearch.specs.parallelism import Parallelism
from hisearch.specs.profile import HostTimes
from hisearch.specs.routing import RouterSpec
from hisearch.validate.silicon.rows import SiliconRow, split_of

#: What KV is taken to go over: no row says; one port of NDR InfiniBand for each accelerator.
FABRIC = "ib-ndr-400"
ROUTER = RouterSpec(policy="least_outstanding_tokens")


@dataclass(frozen=True)
class Side:
    """The prefill or the decode workers of a row.

    row: as if they alone served it, with their split. workers: with a scheduler and a KV cache of their own, so that
    attention groups count.
    """

    role: RoleName
    row: SiliconRow
    workers: int


def side_of(row: SiliconRow, role: RoleName) -> Side:
    """The ``role`` workers of ``row``, from its columns."""
    cells = row.cells
    workers = max(_count(cells, f"{role}_workers"), 1)
    tensor, groups, moe_tensor, expert, stages = (
        max(_count(cells, f"{role}_{name}"), 1) for name in ("tp", "attention_dp", "moe_tp", "moe_ep", "pp")
    )
    split = split_of(tensor, groups, moe_tensor, expert, stages, stated_dp=True)
    share = -(-row.concurrency // workers)
    return Side(role, replace(row, parallelism=split, concurrency=share), workers * split.attention_data)


def states_workers(row: SiliconRow) -> bool:
    """Whether a row says how many workers of each kind there were."""
    return all(_count(row.cells, f"{role}_workers") > 0 for role in ("prefill", "decode"))


def _count(cells: Mapping[str, str], name: str) -> int:
    text = cells.get(name, "")
    return int(float(text)) if text else 0


def pool_of(side: Side, device: WorkerPlan, times: HostTimes, layers: int) -> PoolPlan:
    """The side's workers with the engine's host work."""
    seconds = with_host_times(device.costs.seconds, times, layers)
    plan = replace(
        device,
        costs=replace(device.costs, seconds=seconds, joules=seconds),
        split=Parallelism(tensor=side.row.parallelism.group_ranks),
    )
    return PoolPlan(plan, side.workers, side.role, side.role)


def transfer_of(engine: str, fabric: FabricSpec, bytes_per_token: float) -> TransferPlan:
    """As the engine hands over (``specs.cluster``), over ports of ``fabric``."""
    spec = TransferSpec(fabric=FABRIC)
    first = engine == "sglang"
    return TransferPlan(
        reserve_first=first,
        pipelined=first,
        base_s=fabric.link.latency_s,
        bytes_per_token=bytes_per_token,
        bytes_per_s=fabric.link.bandwidth_bytes_per_s * spec.efficiency,
        forward_s=spec.forward_s,
        reserved_tokens=spec.reserved_decode_tokens,
    )
