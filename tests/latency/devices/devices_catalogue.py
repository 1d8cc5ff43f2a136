"""Devices that the tests of workers share."""

from __future__ import annotations

from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.estimators.devices import DevicesEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec

CATALOGUE = Catalogue()
PIM = CATALOGUE.get("Device", "hbm2-pim").spec
CXL = CATALOGUE.get("Device", "cxl2-memory").spec
CPU = CATALOGUE.get("Device", "host-cpu-amx").spec
NPU_DEVICE = CATALOGUE.get("Device", "npu-128x128-device").spec
A6000 = CATALOGUE.get("Accelerator", "a6000").spec
NPU = CATALOGUE.get("Accelerator", "npu-128x128").spec
ROOFLINE = CATALOGUE.get("LatencyProfile", "roofline").spec
#: PIM that normalises scores itself, at no cost.
SELF_PIM = PIM.model_copy(update={"pim": PIM.pim.model_copy(update={"softmax_scores_per_s": 1e30})})
#: Memory whose link is as fast as an accelerator's peers.
NEAR = CXL.model_copy(
    update={
        "memory_bandwidth_bytes_per_s": 900e9,
        "link": CXL.link.model_copy(update={"kind": "nvlink", "bandwidth_bytes_per_s": 900e9}),
    }
)
KNOWN = {"near": NEAR, "pim": PIM, "self_pim": SELF_PIM, "cxl": CXL, "cpu": CPU, "npu": NPU_DEVICE}


def worker(**block: object) -> WorkerDevices:
    """A worker with the devices of ``KNOWN`` that ``attached`` lists."""
    names = block.pop("attached", [])
    spec = DevicesSpec.model_validate({"attached": {name: {"device": name} for name in names}, **block})
    return WorkerDevices(spec, {name: KNOWN[name] for name in names})


def compiled(model, accelerator, engine, devices=None, *, tp=1, profile=ROOFLINE, **limits):
    """Step costs of a worker."""
    sizes = {"max_tokens": 4096, "max_sequences": 512, "max_context_tokens": 400_000, **limits}
    priced = PricedWorker(model, accelerator, Parallelism(tp), None, "bf16", engine, **sizes)
    return DevicesEstimator("test", profile, devices).compile(priced)
