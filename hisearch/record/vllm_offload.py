"""vLLM's OffloadingConnector: its scheduler's and worker's side as they are, copies that take time by a law.

Copies to the host run one after another, copies to the device too, each beginning when it is issued or the one before
it has ended. vLLM 0.19 alone: later connectors have another worker.
"""

from __future__ import annotations

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


def connector_config(offload: dict[str, Any], block_tokens: int, page_bytes: int) -> dict[str, Any]:
    """Arguments of ``VllmConfig`` that switch the connector on; the host holds whole blocks of ``capacity_tokens``."""
    from vllm.config import KVTransferConfig

    extra = {
        "cpu_bytes_to_use": offload["capacity_tokens"] // block_tokens * page_bytes,
        "block_size": block_tokens * offload["block_size_factor"],
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
    """

    def __init__(self, scheduler: Any, offload: dict[str, Any], block_tokens: int) -> None:
        try:
            from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
            from vllm.v1.kv_offload.factory import OffloadingSpecFactory
            from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
        except ImportError:
            raise CaseError("offload: this vLLM has another connector; only that of 0.19 is recorded") from None
        self.now_s = 0.0
        self.side = OffloadingConnectorWorker(
            OffloadingSpecFactory.create_spec(scheduler.vllm_config, scheduler.kv_cache_config)
        )
        self.to_host = _Stream(self, offload["to_host"], block_tokens, 0)
        self.to_device = _Stream(self, offload["to_device"], block_tokens, 1)
        self.side.worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, self.to_host)
        self.side.worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, self.to_device)

    def flush(self, metadata: Any, now_s: float) -> float:
        """Submit what is pending and wait for the stores of preempted requests; the time when that is done."""
        self.now_s = now_s
        self.side.handle_preemptions(metadata)
        return self.now_s

    def step(self, output: Any, has_batch: bool) -> Any:
        """Issue loads, and stores of the step before; what the engine is told: copies that have ended by now.

        The worker asks for them right after it launched the step: a copy that ends during a step is told by the next.
        """
        from vllm.v1.outputs import KVConnectorOutput

        self.side.start_kv_transfers(output.kv_connector_metadata)
        if has_batch:
            self.side.prepare_store_kv(output.kv_connector_metadata)
        sent, received = self.side.get_finished(output.finished_req_ids)
        return KVConnectorOutput(finished_sending=sent, finished_recving=received)

    def next_end_s(self) -> float | None:
        """When the next copy ends; None where none is under way."""
        return min((end for stream in (self.to_host, self.to_device) for _, end in stream.jobs), default=None)


class _Stream:
    """Copies in one direction, one after another."""

    def __init__(self, worker: Worker, law: list[float], block_tokens: int, device_side: int) -> None:
        self.worker, self.law, self.block_tokens, self.device_side = worker, law, block_tokens, device_side
        self.jobs: list[tuple[int, float]] = []
        self.free_s = 0.0
        self.tokens = 0

    def transfer_async(self, job_id: int, spec: tuple[Any, Any]) -> bool:
        tokens = len(spec[self.device_side].block_ids) * self.block_tokens
        self.tokens += tokens
        self.free_s = max(self.worker.now_s, self.free_s) + self.law[0] + self.law[1] * tokens
        self.jobs.append((job_id, self.free_s))
        return True

    def get_finished(self) -> list[Any]:
        from vllm.v1.kv_offload.worker.worker import TransferResult

        ended = [job for job, end in self.jobs if end <= self.worker.now_s]
        self.jobs = [(job, end) for job, end in self.jobs if end > self.worker.now_s]
        return [TransferResult(job_id=job, success=True) for job in ended]

    def wait(self, job_ids: set[int]) -> None:
        self.worker.now_s = max([self.worker.now_s, *(end for job, end in self.jobs if job in job_ids)])
