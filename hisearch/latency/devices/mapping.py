"""Which device runs which family of operators, and what is refused.

Policies judge a family by the step of ``sequences`` decodes of ``context_tokens`` each that the map names (prompt
attention by one chunk of as many tokens):

by_intensity    a family leaves the accelerator where its FLOPs per byte are below the accelerator's balance (peak FLOPs
                over bandwidth); of all devices with a law for it the fastest takes it, transfers aside.
greedy          in the order of dependencies, each to the device on which it ends first, the transfers of activations
                from the family before it, and of KV, included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hisearch.latency.devices.build import Device, DevicesRefused
from hisearch.latency.devices.work import WorkKind
from hisearch.specs.machines.devices import ACCELERATOR, OPERATORS, DevicesSpec, OperatorName

#: Kinds of work that a family consists of.
KINDS: dict[OperatorName, tuple[WorkKind, ...]] = {
    "projections": ("product",),
    "prefill_attention": ("prefill_attention",),
    "decode_attention": ("decode_attention",),
    "ffn": ("product", "elementwise"),
    "experts": ("product", "elementwise"),
    "lm_head": ("product",),
}


def runs(device: Device, operator: OperatorName) -> bool:
    """Whether the device has laws for all of a family."""
    return device.seconds is not None and all(device.seconds.knows(kind) for kind in KINDS[operator])


def check_map(
    chosen: Mapping[OperatorName, str], devices: Mapping[str, Device], present: Sequence[OperatorName]
) -> None:
    """Refuse a map on which an operator of the model has a device without a law for it.

    Raises:
        DevicesRefused: with the operators named.
    """
    for name, device in devices.items():
        lost = [operator for operator in present if chosen[operator] == name and not runs(device, operator)]
        if lost:
            raise DevicesRefused(f"operators.{lost[0]}", f"{name} has no law for {', '.join(lost)}")


def operator_map(
    spec: DevicesSpec,
    devices: Mapping[str, Device],
    present: Sequence[OperatorName],
    intensity: Callable[[OperatorName], tuple[float, float]],
    seconds: Callable[[OperatorName, str, Mapping[OperatorName, str] | None], float],
) -> dict[OperatorName, str]:
    """A device for every family.

    Args:
        spec: policy, and what is given by hand.
        devices: by name, the accelerator among them.
        present: families that the model has.
        intensity: family -> (its FLOPs per byte, the accelerator's balance) at the reference step.
        seconds: (family, device, map so far) -> seconds at the reference step; transfers included where there is a map.

    Raises:
        DevicesRefused: a device has no law for an operator that is mapped to it.
    """
    chosen: dict[OperatorName, str] = dict.fromkeys(OPERATORS, spec.others or ACCELERATOR)
    if spec.mapping != "by_hand":
        chosen = dict.fromkeys(OPERATORS, ACCELERATOR)
    chosen.update(spec.operators)
    if spec.mapping == "by_hand":
        check_map(chosen, devices, present)
        return chosen
    for operator in present:
        if operator in spec.operators:
            continue
        able = [name for name, device in devices.items() if runs(device, operator)]
        if spec.mapping == "by_intensity":
            flops_per_byte, balance = intensity(operator)
            able = [ACCELERATOR] if flops_per_byte >= balance else able
            cost = {name: seconds(operator, name, None) for name in able}
        else:
            cost = {name: seconds(operator, name, chosen) for name in able}
        chosen[operator] = min(cost, key=lambda name: (cost[name], name != ACCELERATOR))
    check_map(chosen, devices, present)
    return chosen
