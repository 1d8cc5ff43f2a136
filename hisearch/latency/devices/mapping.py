"""Maps families of operators to devices, and refuses maps without laws.

Policies judge a family by a reference step: ``sequences`` decodes of ``context_tokens`` each, as the map states. Prompt
attention is judged by one chunk of ``context_tokens`` tokens:

by_intensity    a family leaves the accelerator where its FLOPs per byte are below the accelerator's balance (peak FLOPs
                over bandwidth). The fastest device with a law for it runs it, ignoring transfers.
greedy          in the order of dependencies, each family goes to the device on which it ends first, including transfers
                of KV and of activations from the family before.
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
    """Refuse a map where an operator's device has no law for it.

    Raises:
        DevicesRefused: names the operators.
    """
    for name, device in devices.items():
        unsupported = [operator for operator in present if chosen[operator] == name and not runs(device, operator)]
        if unsupported:
            raise DevicesRefused(f"operators.{unsupported[0]}", f"{name} has no law for {', '.join(unsupported)}")


def operator_map(
    spec: DevicesSpec,
    devices: Mapping[str, Device],
    present: Sequence[OperatorName],
    intensity: Callable[[OperatorName], tuple[float, float]],
    seconds: Callable[[OperatorName, str, Mapping[OperatorName, str] | None], float],
) -> dict[OperatorName, str]:
    """A device for every family.

    Args:
        spec: policy, and entries mapped by hand.
        devices: by name, the accelerator among them.
        present: families that the model has.
        intensity: family -> (its FLOPs per byte, the accelerator's balance) at the reference step.
        seconds: (family, device, map so far) -> seconds at the reference step; with a map, transfers are included.

    Raises:
        DevicesRefused: a device has no law for an operator that is mapped to it.
    """
    others = (spec.others if spec.mapping == "by_hand" else None) or ACCELERATOR
    chosen: dict[OperatorName, str] = dict.fromkeys(OPERATORS, others) | spec.operators
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
        transfers_from = None if spec.mapping == "by_intensity" else chosen
        cost = {name: seconds(operator, name, transfers_from) for name in able}
        chosen[operator] = min(cost, key=lambda name: (cost[name], name != ACCELERATOR))
    check_map(chosen, devices, present)
    return chosen
