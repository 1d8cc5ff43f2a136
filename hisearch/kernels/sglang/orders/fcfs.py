"""By arrival; retracted requests enter anew, at the end."""

from __future__ import annotations

from hisearch.base.policies import QueueOrder

ORDER = QueueOrder("By arrival.", engines=("vllm", "sglang", "trtllm"), flag="fcfs")
