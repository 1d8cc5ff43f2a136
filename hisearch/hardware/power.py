"""Power draw: idle watts always, and watts above idle in proportion to what is busy.

A device that attains the share ``u`` of its compute or memory peak, whichever is larger, draws
``idle_w + u * (active_w - idle_w)``. So the energy above idle of an operator is the time it would take at peak, times
``active_w - idle_w``, however long it really took. The linear law is an assumption; ``active_w`` is the board's power
limit.
"""

from __future__ import annotations

from hisearch.specs.hardware import AcceleratorSpec, HostSpec


def worker_idle_w(accelerator: AcceleratorSpec, tensor_parallel: int, host: HostSpec | None = None) -> float:
    """Watts of an idle worker: its accelerators, and their share of the host's base power where a host is given."""
    host_w = host.base_w * tensor_parallel / host.accelerators if host is not None else 0.0
    return tensor_parallel * accelerator.idle_w + host_w


def worker_dynamic_w(accelerator: AcceleratorSpec, tensor_parallel: int) -> float:
    """Watts above idle of a worker at full use; never negative."""
    return tensor_parallel * max(accelerator.active_w - accelerator.idle_w, 0.0)


def worker_power_w(accelerator: AcceleratorSpec, tensor_parallel: int, utilisation: float) -> float:
    """Watts of a worker's accelerators at ``utilisation`` (0 to 1).

    Raises:
        ValueError: utilisation is outside [0, 1].
    """
    if not 0.0 <= utilisation <= 1.0:
        raise ValueError(f"utilisation {utilisation} is not within 0 and 1")
    return worker_idle_w(accelerator, tensor_parallel) + utilisation * worker_dynamic_w(accelerator, tensor_parallel)
