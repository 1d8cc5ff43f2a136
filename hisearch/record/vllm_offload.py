"""vLLM's OffloadingConnector: its scheduler's and worker's side as they are, copies that take time by a law.

Copies to the host run one after another, copies to the device too, each beginning when it is issued or the one before
it has ended. A copy to the host waits for the steps that were launched before it. As of the releases whose worker
starts loads behind the launch of a step, a copy to the device waits for that step too.

The engine keeps requests that finished, and those whose stores ended, in sets of names, whose order changes from run to
run and decides which blocks are free first. Here it is that in which stores ended, then that of finishing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hisearch.record.cases import CaseError, offload_settings

#: Key of ``offload`` -> default; None where it must be given.
KEYS: dict[str, Any] = {
    "capacity_tokens": None, "to_host": None, "to_device": None, "block_size_factor": 1, "eviction": "lru",
    "store_threshold": 0,
}  # fmt: skip


def checked(given: dict[str, Any]) -> dict[str, Any]:
    """``offload`` of a case, with its defaults.

    Raises:
        CaseError: an unknown key, or one missing.
    """
    return offload_settings(given, KEYS)


def has_new_worker() -> bool:
    """Whether this vLLM's connector has another worker than that of 0.19: it submits stores and loads by name."""
    import vllm

    return not str(vllm.__version__).startswith("0.19.")


def connector_config(offload: dict[str, Any], block_tokens: int, page_bytes: int) -> dict[str, Any]:
    """Arguments of ``VllmConfig`` that switch the connector on; the host holds whole blocks of ``capacity_tokens``."""
    from vllm.config import KVTransferConfig

    offloaded_tokens = block_tokens * offload["block_size_factor"]
    block_bytes = page_bytes * offload["block_size_factor"]
    if has_new_worker():  # Its blocks are whole pages of the operating system.
        from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

        alignment = CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT
        block_bytes = -(-block_bytes // alignment) * alignment
    extra = {
        "cpu_bytes_to_use": offload["capacity_tokens"] // offloaded_tokens * block_bytes,
        "block_size": offloaded_tokens,
        "eviction_policy": offload["eviction"],
        "store_threshold": offload["store_threshold"],
    }
    transfer = KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )  # fmt: skip
    return {"kv_transfer_config": transfer}


class Worker:
    """The worker's side of the connector, with copies on two streams.

    Attributes:
        now_s: the clock; ``flush`` moves it on.
        device_free_s: when the steps launched by now have ended.
    """

    def __init__(self, scheduler: Any, offload: dict[str, Any], block_tokens: int, finished: Iterable[str]) -> None:
        self.now_s = self.device_free_s = 0.0
        self.to_host = _Stream(self, offload["to_host"], block_tokens)
        self.to_device = _Stream(self, offload["to_device"], block_tokens)
        self.finished = finished
        self.has_new = has_new_worker()
        try:
            self.side = self._new_side(scheduler) if self.has_new else self._old_side(scheduler)
        except ImportError:
            raise CaseError("offload: this vLLM has another connector; those of 0.19 and 0.33 are recorded") from None

    def _old_side(self, scheduler: Any) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory
        from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec

        side = OffloadingConnectorWorker(
            OffloadingSpecFactory.create_spec(scheduler.vllm_config, scheduler.kv_cache_config)
        )
        side.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, _Handler(self.to_host, 0))
        side.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, _Handler(self.to_device, 1))
        return side

    def _new_side(self, scheduler: Any) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory

        config, caches = scheduler.vllm_config, scheduler.kv_cache_config
        spec = OffloadingSpecFactory.create_spec(build_offloading_config(config, caches))
        side = OffloadingConnectorWorker(spec, config, caches)
        side.worker = _Copier(self.to_host, self.to_device)
        connector = scheduler.connector.connector_scheduler
        build = connector.build_connector_meta

        def build_in_order(output: Any) -> Any:
            unordered = output.finished_req_ids
            output.finished_req_ids = [name for name in self.finished if name in unordered]
            metadata = build(output)
            output.finished_req_ids = unordered
            return metadata

        connector.build_connector_meta = build_in_order
        return side

    def flush(self, metadata: Any, now_s: float, device_free_s: float) -> float:
        """Submit what is pending and wait for the stores that have to end first; the time when that is done."""
        self.now_s, self.device_free_s = now_s, device_free_s
        self.side.handle_preemptions(metadata)
        return self.now_s

    def step(self, output: Any, has_batch: bool, device_free_s: float) -> Any:
        """Issue loads, and stores of the step before; what the engine is told: copies that have ended by now.

        The worker asks for them right after it launched the step: a copy that ends during a step is told by the next.

        Args:
            output: the scheduler's.
            has_batch: whether the step computes anything.
            device_free_s: when it ends.
        """
        from vllm.v1.outputs import KVConnectorOutput

        if self.has_new:
            self.device_free_s = device_free_s
        self.side.start_kv_transfers(output.kv_connector_metadata)
        if has_batch or self.has_new:
            self.side.prepare_store_kv(output.kv_connector_metadata)
        order = [] if self.has_new else self._release_order(output.finished_req_ids)
        sent, received = self.side.get_finished(output.finished_req_ids)
        sent = sorted(sent or (), key=order.index)
        ended = {"finished_sending": sent or None, "finished_recving": received or None}
        if self.has_new:
            ended["kv_connector_worker_meta"] = self.side.build_connector_worker_meta()
        return KVConnectorOutput(**ended)

    def _release_order(self, finished: set[str]) -> list[str]:
        """Requests of stores that have ended by now, as their last one did; then those that ``finished``."""
        ended = [self.side._jobs[job][0] for job, end_s in self.to_host.jobs if end_s <= self.now_s]
        last = list(dict.fromkeys(name for name in reversed(ended) if name not in finished))
        return [*reversed(last), *(name for name in self.finished if name in finished)]

    def has_unsubmitted(self) -> bool:
        """Whether the next pass begins copies that this one prepared."""
        return bool(self.side._unsubmitted_store_jobs)

    def ends_s(self) -> list[float]:
        """When the copies end of which the engine does not know yet."""
        return [end_s for stream in (self.to_host, self.to_device) for _, end_s in stream.jobs]


class _Stream:
    """Copies in one direction, one after another."""

    def __init__(self, worker: Worker, law: list[float], block_tokens: int) -> None:
        self.worker, self.law, self.block_tokens = worker, law, block_tokens
        self.jobs: list[tuple[int, float]] = []
        self.free_s = 0.0
        self.tokens = 0

    def copy(self, job_id: int, blocks: int, ready_s: float) -> bool:
        """Copy ``blocks`` of the device, which are there from ``ready_s`` on."""
        tokens = blocks * self.block_tokens
        self.tokens += tokens
        self.free_s = max(self.worker.now_s, ready_s, self.free_s) + self.law[0] + self.law[1] * tokens
        self.jobs.append((job_id, self.free_s))
        return True

    def ended(self) -> list[int]:
        """Copies that have ended since the last call."""
        ended = [job for job, end in self.jobs if end <= self.worker.now_s]
        self.jobs = [(job, end) for job, end in self.jobs if end > self.worker.now_s]
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Move the clock to the end of these copies."""
        self.worker.now_s = max([self.worker.now_s, *(end for job, end in self.jobs if job in job_ids)])


class _Handler:
    """A stream as the worker of vLLM 0.19 asks it; ``device_side`` of a transfer names the device's blocks."""

    def __init__(self, stream: _Stream, device_side: int) -> None:
        self.stream, self.device_side, self.wait = stream, device_side, stream.wait

    def transfer_async(self, job_id: int, spec: tuple[Any, Any]) -> bool:
        ready_s = self.stream.worker.device_free_s if self.device_side == 0 else 0.0
        return self.stream.copy(job_id, len(spec[self.device_side].block_ids), ready_s)

    def get_finished(self) -> list[Any]:
        from vllm.v1.kv_offload.worker.worker import TransferResult

        return [TransferResult(job_id=job, success=True) for job in self.stream.ended()]


class _Copier:
    """Both streams as the worker of vLLM 0.33 asks them."""

    def __init__(self, to_host: _Stream, to_device: _Stream) -> None:
        self.to_host, self.to_device = to_host, to_device

    def submit_store(self, job_id: int, source: Any, target: Any) -> bool:
        return self.to_host.copy(job_id, len(source.block_ids), self.to_host.worker.device_free_s)

    def submit_load(self, job_id: int, source: Any, target: Any, expedited: bool = False) -> bool:
        return self.to_device.copy(job_id, len(target.block_ids), self.to_device.worker.device_free_s)

    def get_finished(self) -> list[Any]:
        from vllm.v1.kv_offload.base import TransferResult

        return [TransferResult(job_id=job, success=True) for job in self.to_host.ended() + self.to_device.ended()]

    def wait(self, job_ids: set[int]) -> None:
        self.to_host.wait(job_ids)
        self.to_device.wait(job_ids)
