"""The context of an export: its deployment's status, and what else belongs into the folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hisearch.export.trial_status import TrialStatus
from hisearch.specs.base import API_VERSION
from hisearch.specs.yaml_nodes import dump_yaml
from hisearch.traces.changes.replay import Replay

#: Files of an export's folder.
README = "README.md"
DEPLOYMENT = "deployment.yaml"
WORKLOAD = "workload.yaml"
SLO = "slo.yaml"
#: Folder of the benchmark scripts, and its file of requests.
BENCHMARK = "benchmark"
REQUESTS = "requests.jsonl"

#: The status of a deployment without a study.
OF_NO_STUDY = TrialStatus("deployment", "Deployment")


class Benchmark(NamedTuple):
    """The requests to send.

    about: what they are of. simulated: what was simulated with them. mean_rps: rate of that; NaN where it is not known.
    """

    replay: Replay
    about: str
    simulated: str = ""
    mean_rps: float = math.nan


@dataclass(frozen=True)
class ExportContext:
    """The context of an exported deployment. status: in its study, if any.

    replay: the command that simulates ``deployment.yaml`` again, run in the folder. inputs: further documents that it
    reads, by name. benchmark: requests to send to the real deployment; None for no benchmark scripts. notices: shown
    first in READMEs, a paragraph each. first_host: number of its first host; hosts below are those of other models.
    """

    status: TrialStatus = OF_NO_STUDY
    replay: str = f"hisearch simulate {DEPLOYMENT} --trace chat-multiturn"
    inputs: Mapping[str, str] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    notices: tuple[str, ...] = ()
    first_host: int = 0


def document_text(kind: str, name: str, description: str, spec: dict[str, Any]) -> str:
    """YAML text of a document."""
    metadata = {"name": name, "description": description} if description else {"name": name}
    return dump_yaml({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
