"""The table of mixes in docs/parallelism.md: one model on 2,048 accelerators, split in different ways.

python docs/generate_parallelism.py
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.api.bench.cases import CASES, plan_of
from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.score.energy import mean_w
from hisearch.simulate import simulate
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace

ACCELERATORS = 2048
#: (tensor_parallel, pipeline_parallel)
MIXES = ((8, 1), (4, 2), (2, 4), (1, 8), (8, 2), (8, 4), (8, 8), (4, 8), (2, 16), (1, 32))
#: Factors on the workload's rate.
LOADS = (1.0, 8.0)


def main() -> None:
    """Print the table."""
    case, catalogue = CASES["cluster-2048"], Catalogue()
    generator = catalogue.get("Workload", case.workload).spec.generator
    trace = compile_trace(generate_trace(generator), case.workload)
    print("| TP | PP | workers | KV tokens | TTFT p99 (s), 1 and 8 × | TPOT p50 (ms) | E2E p99 (s) | mean MW |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for tensor, stages in MIXES:
        workers = ACCELERATORS // (tensor * stages)
        split = {"tensor_parallel": tensor, "pipeline_parallel": stages, "replicas": workers}
        mix = replace(case, pool=case.pool.model_copy(update=split))
        try:
            plan = plan_of(mix, catalogue)
        except DoesNotFit:
            print(f"| {tensor} | {stages} | {workers} | does not fit | | | | |")
            continue
        figures = []
        for load in LOADS:
            result = simulate(plan, trace, replicas=workers, load=load)
            done = result.requests
            ttft_s, e2e_s = np.percentile(done.ttft_s, 99), np.percentile(done.e2e_s, 99)
            tpot_ms, megawatts = 1000 * np.median(done.tpot_s), mean_w(result) / 1e6
            figures.append((f"{ttft_s:.3f}", f"{tpot_ms:.1f}", f"{e2e_s:.1f}", f"{megawatts:.2f}"))
        cells = [tensor, stages, workers, f"{plan.kv_capacity_tokens:,}", *map(", ".join, zip(*figures, strict=True))]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
