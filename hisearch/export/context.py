"""Contents of an export's folder other than launch scripts, for any number and width of pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisearch.export.benchmark import Benchmark
from hisearch.export.files import DEPLOYMENT, README, write_export
from hisearch.export.trial_status import TrialStatus
from hisearch.specs.base import API_VERSION
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.yaml_nodes import dump_yaml

#: The status of a deployment without a study.
OF_NO_STUDY = TrialStatus("deployment", "Deployment")


@dataclass(frozen=True)
class ExportContext:
    """The context of an exported deployment. status: in its study, if any.

    replay: the command that simulates ``deployment.yaml`` again, run in the folder. inputs: further documents that it
    reads, by name. benchmark: requests to send to the real deployment; None for no benchmark scripts. notices: shown
    first in READMEs, a paragraph each.
    """

    status: TrialStatus = OF_NO_STUDY
    replay: str = f"hisearch simulate {DEPLOYMENT} --trace chat-multiturn"
    inputs: Mapping[str, str] = field(default_factory=dict)
    benchmark: Benchmark | None = None
    notices: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Values for README templates."""
        return {
            "status": self.status,
            "replay": self.replay,
            "inputs": tuple(self.inputs),
            "benchmark": self.benchmark,
            "notices": self.notices,
        }

    def write(self, out: Path, deployment: DeploymentSpec, readme: str, files: Mapping[str, str]) -> list[Path]:
        """Write everything into the folder ``out``.

        Returns:
            The files written, README first.

        Raises:
            ExportError: ``out`` holds other files at these paths.
        """
        base_files = {README: readme, DEPLOYMENT: self._deployment_text(deployment)}
        return write_export(out, {**base_files, **self.inputs, **files})

    def _deployment_text(self, deployment: DeploymentSpec) -> str:
        """Text of ``deployment.yaml``."""
        description = f"{self.status.title}. Exported by hisearch; every setting is written out."
        return document_text("Deployment", self.status.name, description, deployment.model_dump(mode="json"))


def document_text(kind: str, name: str, description: str, spec: dict[str, Any]) -> str:
    """YAML text of a document."""
    metadata = {"name": name, "description": description} if description else {"name": name}
    return dump_yaml({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec})
