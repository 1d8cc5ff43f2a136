"""Clients of campaigns: what they add to the time that a server's front end takes.

InferenceMAX's is one process, which opens a session and a connection for each request; TTFT counts both (github
SemiAnalysisAI/InferenceX, ``utils/bench_serving``; NVIDIA/srt-slurm until pull request 260). AIConfigurator's
(aiperf) and that of the open loops (inference-perf, pull request 282) keep theirs, in several processes.

``python -m refit.front_ends vllm TOKENIZER --clients`` measures what a connection takes: figures are in
docs/notes/2026-11-host-work.md. A client reads a token in less time than the server sends one, which hides it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.latency.costs import FrontEnd


@dataclass(frozen=True)
class Client:
    """A client, and what each of its requests takes besides the server's front end.

    name: how it connects. request_s: seconds of a request alone. in_line_s: those of them that a burst waits for, one
    request after another.
    """

    name: str
    request_s: float = 0.0
    in_line_s: float = 0.0

    def before(self, front: FrontEnd) -> FrontEnd:
        """``front`` as this client sees it; one that takes no time stays so."""
        if front == FrontEnd():
            return front
        return front._replace(request_s=front.request_s + self.request_s, read_s=front.read_s + self.in_line_s)


KEEPS_CONNECTIONS = Client("keeps its connections")
#: Measured: 1.1 to 1.8 ms alone, 0.7 to 1.0 in line, on a machine 1.7 times slower than that of ``request_s``.
NEW_CONNECTIONS = Client("a connection for each request", request_s=0.8e-3, in_line_s=0.5e-3)
