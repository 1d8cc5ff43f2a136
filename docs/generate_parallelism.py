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
    print("| TP | PP | workers | KV tokens | load | TTFT p50, p99 (s) | TPOT p50 (ms) | E2E p99 (s) | mean MW |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for tensor, stages in MIXES:
        workers = ACCELERATORS // (tensor * stages)
        split = {"tensor_parallel": tensor, "pipeline_parallel": stages, "replicas": workers}
        mix = replace(case, pool=case.pool.model_copy(update=split))
        try:
            plan = plan_of(mix, catalogue)
        except DoesNotFit:
            print(f"| {tensor} | {stages} | {workers} | does not fit | | | | | |")
            continue
        for load in LOADS:
            result = simulate(plan, trace, replicas=workers, load=load)
            done = result.requests
            ttft, tpot = np.percentile(done.ttft_s, [50, 99]), 1000 * np.median(done.tpot_s)
            cells = [
                *(tensor, stages, workers, f"{plan.kv_capacity_tokens:,}", f"{load:g}"),
                f"{ttft[0]:.3f}, {ttft[1]:.3f}",
                *(f"{tpot:.1f}", f"{np.percentile(done.e2e_s, 99):.1f}", f"{mean_w(result) / 1e6:.2f}"),
            ]
            print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
