"""At which bandwidth an attached device that was not chosen would win: simulated with the device made faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hisearch.search.model.deployments import resized
from hisearch.search.model.job import TRIAL_ERRORS, Evaluation
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.other_hardware import OtherHardware
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.machines.devices import DeviceSpec

#: Most times today's bandwidth, and simulations of a device: one there, then halvings, to 4^(1/32) = 4 %.
MOST_FACTOR, SIMULATIONS = 4.0, 6


@dataclass(frozen=True)
class BandwidthWin:
    """A device made ``factor`` times as fast, in its memory, inside and on its link, lets ``replicas`` meet the SLO.

    hardware: as of ``OtherHardware``. item: the device. usd_per_hour: of these replicas, less than the recommendation's
    price. factor: None where ``most`` times the bandwidth does not do.
    """

    hardware: str
    item: str
    replicas: int
    usd_per_hour: float
    factor: float | None
    most: float = MOST_FACTOR


def bandwidth_wins(
    other_hardware: Iterable[OtherHardware],
    best: Trial,
    devices: Iterable[str],
    evaluate: Callable[[DeploymentSpec, str, float], Evaluation],
    usd_per_hour: Callable[[DeploymentSpec], float],
) -> list[BandwidthWin]:
    """Of each other hardware with a device of its own: the least factor on its bandwidth at which it would win.

    That is at most as many replicas as simulated, fewer where these meet the SLO, that cost less than the
    recommendation. Verdicts are taken to improve with bandwidth. Deployments of several pools are left out.

    Args:
        other_hardware: hardware that was not chosen, whether it meets the SLO or not.
        best: the recommendation.
        devices: names of attached devices.
        evaluate: simulates a deployment with the device of a name at a factor.
        usd_per_hour: price of a deployment, without electricity.
    """
    known, wins = set(devices), []
    for other in other_hardware:
        trial = other.trial
        if trial is None or len(trial.deployment.pools) != 1:
            continue
        if trial.feasible and price_of(trial) <= price_of(best):  # something else speaks against it
            continue
        item = other.item if other.item in known else _own_device(trial.deployment, best.deployment)
        if item not in known:
            continue
        electricity = trial.metrics.get("energy_usd_per_hour", 0.0)
        sizes = range(trial.deployment.pool.replicas - (1 if trial.feasible else 0), 0, -1)
        smaller = (resized(trial.deployment, [count]) for count in sizes)
        cheaper = next((spec for spec in smaller if usd_per_hour(spec) + electricity < price_of(best)), None)
        if cheaper is not None:
            factor = _least_factor(lambda by, of=cheaper, item=item: _holds(evaluate, of, item, by))  # type: ignore[misc]
            usd = usd_per_hour(cheaper) + electricity
            wins.append(BandwidthWin(other.hardware, item, cheaper.pool.replicas, usd, factor))
    return wins


def _own_device(deployment: DeploymentSpec, best: DeploymentSpec) -> str:
    """The first device, priced or not, that a deployment has attached and the recommendation has not; "" without."""
    theirs, ours = (
        [entry.device for pool in spec.pools if pool.devices is not None for entry in pool.devices.attached.values()]
        for spec in (deployment, best)
    )
    return next((device for device in theirs if device not in ours), "")


def _holds(
    evaluate: Callable[[DeploymentSpec, str, float], Evaluation], deployment: DeploymentSpec, item: str, factor: float
) -> bool:
    try:
        return evaluate(deployment, item, factor).feasible
    except TRIAL_ERRORS:
        return False


def _least_factor(holds: Callable[[float], bool]) -> float | None:
    """The least factor that holds, within the tolerance, on a logarithmic scale; None where the largest does not."""
    if not holds(MOST_FACTOR):
        return None
    low, high = 1.0, MOST_FACTOR
    for _ in range(SIMULATIONS - 1):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def faster(device: DeviceSpec, factor: float) -> DeviceSpec:
    """The device with ``factor`` times the bandwidth of its memory, of PIM's channels, and of its link."""
    changes: dict[str, object] = {"memory_bandwidth_bytes_per_s": factor * device.memory_bandwidth_bytes_per_s}
    if device.pim is not None:
        rate = factor * device.pim.channel_bytes_per_s
        changes["pim"] = device.pim.model_copy(update={"channel_bytes_per_s": rate})
    if device.link is not None:
        rate = factor * device.link.bandwidth_bytes_per_s
        changes["link"] = device.link.model_copy(update={"bandwidth_bytes_per_s": rate})
    return device.model_copy(update=changes)
