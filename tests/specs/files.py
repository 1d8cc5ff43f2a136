"""Small documents that the tests of specs write and load."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hisearch.specs.documents.resolve import load_study
from hisearch.specs.errors import SpecError

SLO = """\
    apiVersion: hisearch/v1
    kind: SLO
    metadata: {name: NAME}
    spec:
      terms:
        - {metric: ttft_s, percentile: 99, at_most_s: 1.5}
"""

STUDY = """\
    apiVersion: hisearch/v1
    kind: Study
    metadata:
      name: mine
    spec:
      model: qwen3-8b
      workload:
        trace: ./trace.csv
      slo: interactive-chat
      space: quickstart
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(dedent(text))
    return path


def slo_text(name: str) -> str:
    return SLO.replace("NAME", name)


def refusal(ref: str | Path, *settings: str) -> str:
    """What ``load_study`` says when it refuses."""
    with pytest.raises(SpecError) as caught:
        load_study(ref, settings)
    return str(caught.value)
