"""Power draw: three states of an accelerator, and the rest of a node.

    idle      ``idle_w``
    standby   ``standby_w`` instead, once a worker has been idle for ``standby_after_s``; its next step begins
              ``wake_s`` later, and costs ``wake_j`` more. FFN accelerators apart have both of their own: a step
              begins when all are awake
    active    above idle, while operators run

An operator of an accelerator keeps arithmetic busy for ``c`` and memory for ``m`` seconds, at the rates that kernels
attain, and takes the longer of both. Arithmetic draws ``active_w - idle_w``, memory ``memory_w - idle_w``, and both
together ``active_w - idle_w`` at most, the board's power limit:

    joules above idle = min(c * (active_w - idle_w) + m * (memory_w - idle_w), max(c, m) * (active_w - idle_w))

Launches, collectives and the host's work draw nothing of it. The law is an assumption; docs/power.md holds it against
measured watts.

The rest of a node draws ``base_w`` always (waiting CPUs, memory, fans, adapters, disks), and ``cpu_active_w`` more
while its workers step. Its accelerator slots share both. Links and media add energy per byte.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import NamedTuple

from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume
from hisearch.specs.machines.hardware import AcceleratorSpec, HostSpec
from hisearch.specs.machines.parallelism import Parallelism
from hisearch.specs.models.model import ModelSpec

#: Bytes of an activation: 16 bits whatever the weights' format.
_ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class BaseParts:
    """Watts of a worker's share of its hosts' base load, by component; ``PowerPlan.host_w`` is the total."""

    cpu_w: float = 0.0
    dram_w: float = 0.0
    links_w: float = 0.0
    nics_w: float = 0.0
    storage_w: float = 0.0


class Standby(NamedTuple):
    """Standby of a worker's accelerators of one kind.

    saving_w: idle less standby, of all of them. after_s: idle seconds before standby. wake_s, wake_j: from there to a
    step; joules of all of them.
    """

    saving_w: float = 0.0
    after_s: float = math.inf
    wake_s: float = 0.0
    wake_j: float = 0.0


@dataclass(frozen=True)
class PowerPlan:
    """A worker's power besides its steps' energy and its accelerators' idle power.

    accelerators: of the worker.
    standby_saving_w: of one accelerator, idle less standby.
    standby_after_s: idle seconds before standby. wake_s, wake_j: from standby to a step; joules of all accelerators.
    host_w: the worker's share of its hosts' base load.
    cpu_w: its share of the hosts' CPU power above the base load, while it steps.
    peer_j_per_token: of collectives, per computed token.
    host_link_j_per_byte, network_j_per_byte: of KV moved.
    usd_per_kwh, pue: price of electricity, and watts of the site per watt of its machines.
    base_parts: ``host_w`` by component.
    ffn: standby of the worker's part of FFN accelerators that stand apart; None without.
    """

    accelerators: int = 1
    standby_saving_w: float = 0.0
    standby_after_s: float = math.inf
    wake_s: float = 0.0
    wake_j: float = 0.0
    host_w: float = 0.0
    cpu_w: float = 0.0
    peer_j_per_token: float = 0.0
    host_link_j_per_byte: float = 0.0
    network_j_per_byte: float = 0.0
    usd_per_kwh: float = 0.0
    pue: float = 1.0
    base_parts: BaseParts = BaseParts()
    ffn: Standby | None = None

    @property
    def own(self) -> Standby:
        """Standby of the worker's own accelerators."""
        return Standby(self.standby_saving_w * self.accelerators, self.standby_after_s, self.wake_s, self.wake_j)


class FfnPart(NamedTuple):
    """FFN accelerators apart from attention: a worker's part of them, what they are, and the host that carries them."""

    accelerators: float
    groups: int
    accelerator: AcceleratorSpec
    host: HostSpec | None


def plan_power(
    split: Parallelism,
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    host: HostSpec | None,
    ffn: FfnPart | None = None,
    *,
    networked: bool = False,
) -> PowerPlan:
    """Power of a worker with this split; no host power without ``host``.

    ffn: accelerators of its FFNs, if apart. networked: its steps have the joules of its collectives.
    """
    shares = [(host, split.ranks / host.accelerators)] if host is not None else []
    single = standby_of(accelerator, 1)
    peer_bytes = 0.0 if networked else _peer_bytes_per_token(split, model, separate_ffn=ffn is not None)
    peer_j = peer_bytes * accelerator.peer_link.energy_j_per_byte
    if ffn is not None:
        shares += [(ffn.host, ffn.accelerators / ffn.host.accelerators)] if ffn.host is not None else []
        # A dense FFN's results are reduced among the accelerators that it is split over.
        dense_layers = model.ffn_count if model.moe is None else min(model.moe.leading_dense_layers, model.ffn_count)
        dense = dense_layers * all_gather_volume(1.0, ffn.groups) * ffn.groups
        peer_j += dense * _ACTIVATION_BYTES * model.hidden_size * ffn.accelerator.peer_link.energy_j_per_byte
    parts = [base_parts(carrier, share) for carrier, share in shares]
    return PowerPlan(
        accelerators=split.ranks,
        standby_saving_w=single.saving_w,
        standby_after_s=single.after_s,
        wake_s=single.wake_s,
        wake_j=single.wake_j * split.ranks,
        host_w=sum(carrier.base_w * share for carrier, share in shares),
        cpu_w=sum(carrier.cpu_active_w * share for carrier, share in shares),
        peer_j_per_token=peer_j,
        host_link_j_per_byte=accelerator.host_link.energy_j_per_byte,
        network_j_per_byte=host.network.energy_j_per_byte if host is not None and host.network is not None else 0.0,
        usd_per_kwh=host.usd_per_kwh if host is not None else 0.0,
        pue=host.pue if host is not None else 1.0,
        base_parts=BaseParts(*(sum(column) for column in zip(*map(astuple, parts), strict=True))),
        ffn=standby_of(ffn.accelerator, ffn.accelerators) if ffn is not None else None,
    )


def standby_of(accelerator: AcceleratorSpec, count: float) -> Standby:
    """Standby of so many accelerators; never entered where the accelerator has none."""
    if accelerator.standby_w is None:
        return Standby()
    saving_w = (accelerator.idle_w - accelerator.standby_w) * count
    return Standby(saving_w, accelerator.standby_after_s, accelerator.wake_s, accelerator.wake_j * count)


def base_parts(host: HostSpec, share: float) -> BaseParts:
    """Watts of a share of a host's base load, by component."""
    parts = host.base_parts
    stated = (parts.cpu_w, parts.dram_w, parts.links_w, parts.nics_w, parts.storage_w)
    return BaseParts(*(watts * share for watts in stated))


def _peer_bytes_per_token(split: Parallelism, model: ModelSpec, *, separate_ffn: bool) -> float:
    """Bytes that a worker's ranks send each other for one token of one group: collectives of all layers, and sends.

    Two all-reduces per layer and one for the embedding; the second unless ``separate_ffn``. With several groups, a
    gather and a scatter over the stage replace every second all-reduce, as where ranks share prompts.
    """
    payload, split = _ACTIVATION_BYTES * model.hidden_size, split.as_groups
    reduced = all_reduce_volume(1.0, split.tensor) * payload * split.tensor
    layers = (model.layers + 1) * reduced
    if split.attention_data > 1:
        layers += model.ffn_count * 2 * all_gather_volume(1.0, split.stage_ranks) * payload * split.stage_ranks
    elif not separate_ffn:
        layers += model.ffn_count * reduced
    return layers + (split.pipeline - 1) * payload


def worker_idle_w(accelerator: AcceleratorSpec, tensor_parallel: int, host: HostSpec | None = None) -> float:
    """Watts of an idle worker: its accelerators, and their share of the host's base power where a host is given."""
    host_w = host.base_w * tensor_parallel / host.accelerators if host is not None else 0.0
    return tensor_parallel * accelerator.idle_w + host_w


def memory_power_share(accelerator: AcceleratorSpec) -> float:
    """Watts above idle while memory alone is busy, over those at full use; 0 to 1."""
    dynamic_w = accelerator.active_w - accelerator.idle_w
    if accelerator.memory_w is None or dynamic_w <= 0:
        return 1.0
    return (accelerator.memory_w - accelerator.idle_w) / dynamic_w


def worker_dynamic_w(accelerator: AcceleratorSpec, tensor_parallel: int) -> float:
    """Watts above idle of a worker at full use; never negative."""
    return tensor_parallel * max(accelerator.active_w - accelerator.idle_w, 0.0)
