"""A server's profile from its step log: with the time that its steps lost, as they will lose it again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hisearch.api.drive import calibrate_server
from hisearch.api.observe import DEPLOYMENT, STEPS
from hisearch.calibrate.served.front_end import ClientSample
from tests.calibrate.step_logs import drawn_steps, timed, write_jsonl
from tests.calibrate.test_steps import SCALED

_DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: observed}
spec:
  model: llama-3.1-8b
  profile: roofline
  pools: [{accelerator: h100-sxm, engine: {name: vllm, version: 0.19.1}}]
"""


def observed(folder: Path, slower: float) -> Path:
    """An observation of which four steps in ten without prompts take ``slower`` longer."""
    steps = drawn_steps(600)
    pauses = np.where(np.arange(len(steps)) % 3 == 1, 1.0 + slower, 1.0)
    write_jsonl(folder / STEPS, steps, timed(SCALED, steps) * pauses)
    (folder / DEPLOYMENT).write_text(_DEPLOYMENT)
    return folder


def test_pauses_stay_beside_the_law(tmp_path: Path) -> None:
    server = calibrate_server(observed(tmp_path, 0.6))
    (law,) = server.calibrated.profile.regressions
    assert server.facts()["beyond the law"].startswith(f"{law.excess.share:+.1%} of each step")
    assert law.excess.share == pytest.approx(0.4 * 0.6, abs=0.02)


def test_a_client_needs_the_one_that_it_is_held_against(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name a server with drive"):
        calibrate_server(observed(tmp_path, 0.0), clients=[ClientSample(60, 0.05, 0.045, 2.0)])
