"""One measured run with prefill/decode disaggregation: prefill workers, decode workers and the network between them.

A side's workers are priced like those of an aggregated run (``pricing``), under the limits of their recipe
(``recipes``) if known. Attention groups of a worker step in lockstep, each with its own requests. A row is not priced
if it neither states its number of workers nor matches exactly one recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hisearch.simulate.plans.fleet import TransferPlan
from hisearch.specs.deployments.cluster import RoleName, TransferSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.machines.hardware import FabricSpec
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.validate.silicon.campaigns import Conditions, drafting
from hisearch.validate.silicon.conditions import conditions_of
from hisearch.validate.silicon.recipes import RecipeSide, candidates, recipe_of
from hisearch.validate.silicon.rows import SiliconRow, split_of

#: Assumed fabric of the KV transfer, which no row states: one port of NDR InfiniBand for each accelerator.
FABRIC = "ib-ndr-400"
#: Dynamo's frontend, which these campaigns used, routes round robin by default (``--router-mode``).
ROUTER = RouterSpec(policy="round_robin")
#: Requests of a scheduler whose recipe sets no limit, or one beyond any of these runs.
MOST_RUNNING = 2048
#: Reasons why a row without stated workers has no price.
UNTOLD = "workers are not stated, and no published recipe tells them"
AMBIGUOUS = "workers are not stated, and several published recipes may have run"


class UnknownDeployment(ValueError):  # noqa: N818
    """A row without a stated number of workers and without one matching recipe; the message is the reason."""


@dataclass(frozen=True)
class Side:
    """The prefill or the decode workers of a row.

    row: as if they alone served it, with their split. workers: how many. limits: of the recipe. drafts:
    tokens drafted in a step.
    """

    role: RoleName
    row: SiliconRow
    workers: int
    limits: RecipeSide | None = None
    drafts: int = 0

    @property
    def split(self) -> Parallelism:
        """Of a worker."""
        return self.row.parallelism


def sides_of(row: SiliconRow) -> tuple[Side, Side]:
    """The prefill and the decode workers of ``row``: of its recipe, else from its columns.

    Raises:
        UnknownDeployment: neither states their number.
    """
    recipe = recipe_of(row)
    if recipe is not None:
        decode = _published(row, "decode", recipe.decode)
        return _published(row, "prefill", recipe.prefill), replace(decode, drafts=recipe.drafts or 0)
    if not row.states_workers:
        raise UnknownDeployment(AMBIGUOUS if candidates(row) else UNTOLD)
    return _stated(row, "prefill"), _stated(row, "decode")


def _published(row: SiliconRow, role: RoleName, limits: RecipeSide) -> Side:
    share = -(-row.concurrency // limits.workers)
    return Side(role, replace(row, parallelism=limits.split, concurrency=share), limits.workers, limits)


def _stated(row: SiliconRow, role: RoleName) -> Side:
    workers = max(row.count(f"{role}_workers"), 1)
    tensor, groups, moe_tensor, expert, stages = (
        max(row.count(f"{role}_{name}"), 1) for name in ("tp", "attention_dp", "moe_tp", "moe_ep", "pp")
    )
    split = split_of(tensor, groups, moe_tensor, expert, stages, stated_dp=True)
    share = -(-row.concurrency // workers)
    return Side(role, replace(row, parallelism=split, concurrency=share), workers)


def conditions_of_side(side: Side) -> Conditions:
    """Conditions of the side's row, with the limits of its recipe; waits of scripts for a single server are left out.

    TensorRT-LLM's prefill workers do not overlap steps (``disable_overlap_scheduler`` in each of its recipes). The
    receive interval of SGLang's low-latency recipes on GB200 and GB300, ten decode steps, is not simulated on decode
    workers: a request is some five steps late there.
    """
    conditions, limits = conditions_of(side.row), side.limits
    defaults = {
        "receive_interval": 1,
        "cudagraph_mode": None,
        "attention_dp_balance": False,
        "batch_wait_timeout_iters": 0,
    }
    engine = conditions.engine.model_copy(update=defaults | {"speculation": drafting(side.drafts)})
    if limits is None:
        return replace(conditions, engine=engine)
    changed = {
        # All in flight may come to one group: they are not distributed evenly.
        "max_running_requests": min(limits.batch or MOST_RUNNING, side.row.concurrency * side.workers),
        "memory_fraction": limits.memory_fraction or engine.memory_fraction,
        "chunk_tokens": limits.step_tokens or engine.chunk_tokens,
        "max_prefill_tokens": limits.prefill_tokens or engine.max_prefill_tokens,
        "max_cudagraph_capture_size": limits.graph_tokens,
        "overlap": engine.overlap and (engine.name != "trtllm" or side.role != "prefill"),
    }
    return replace(conditions, engine=engine.model_copy(update=changed), pool_tokens=limits.pool_tokens)


def transfer_of(engine: str, fabric: FabricSpec, bytes_per_token: float) -> TransferPlan:
    """The engine's KV transfer (``specs.deployments.cluster``) over ports of ``fabric``."""
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
