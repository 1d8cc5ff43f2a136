"""Real engines, where an environment has them: as tests/engines makes them, or as HISEARCH_VLLM_PYTHON_0_33_0 names."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.validate.recorded_settings import VllmSettings
from hisearch.validate.recording import read_recording
from hisearch.validate.scheduler import validate_recordings
from tests.engines.environments import ENGINES, NoEngineError, record


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "feature"),
    [
        (title, feature)
        for title in ("vllm-0.19.1", "vllm-0.33.0")
        for feature in ("context", "grammars", "lmcache", "states", "windows")
    ]
    + [("sglang-0.5.9", "grammars"), ("sglang-0.5.23", "grammars")],
)
def test_features_are_recorded_and_simulated(title: str, feature: str, tmp_path: Path) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {engine.title}; run `make test-engines`, or set {engine.variable} to its Python")
    try:
        record(engine, tmp_path, "--random", "4", "--seed", "9", "--with", feature)
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert len(cases) >= 3  # vLLM 0.19.1 does not end with one of these windows
    assert [case.file for case in cases if not case.ok] == []


#: Two ways to run the same requests.
SHARED_PROMPTS = """
- name: {name}
  settings: {{max_num_seqs: 8, max_num_batched_tokens: 64, num_gpu_blocks_override: 40, block_size: 8,
             prefill_context_parallel_size: {ranks}}}
  requests:
  - {{id: 0, arrival_s: 0.0, input_tokens: 150, output_tokens: 20}}
  - {{id: 1, arrival_s: 0.01, input_tokens: 3, output_tokens: 40}}
  - {{id: 2, arrival_s: 0.02, input_tokens: 90, output_tokens: 9}}
  - {{id: 3, arrival_s: 0.02, input_tokens: 120, output_tokens: 30}}
"""


@pytest.mark.slow
def test_vllm_decides_alike_however_many_ranks_share_prompts(tmp_path: Path) -> None:
    engine = ENGINES["vllm-0.33.0"]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {engine.title}; run `make test-engines`, or set {engine.variable} to its Python")
    for ranks in (1, 4):
        (tmp_path / f"{ranks}.yaml").write_text(SHARED_PROMPTS.format(name=f"ranks-{ranks}", ranks=ranks))
        record(engine, tmp_path, "--cases", str(tmp_path / f"{ranks}.yaml"))
    recordings = [read_recording(tmp_path / f"ranks-{ranks}.json.gz") for ranks in (1, 4)]
    assert recordings[0].steps == recordings[1].steps
    settings = recordings[1].settings
    assert isinstance(settings, VllmSettings)
    assert settings.prefill_context_parallel_size == 4
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert [case.error for case in cases] == [None, None]
    assert all(case.ok for case in cases)


@pytest.mark.slow
@pytest.mark.parametrize("title", ENGINES)
def test_random_cases_are_recorded_and_simulated(title: str, tmp_path: Path) -> None:
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    record(engine, tmp_path, "--random", "3", "--seed", "9")
    cases = list(validate_recordings(sorted(tmp_path.glob("*.json.gz"))))
    assert len(cases) == 3
    assert [case.error for case in cases] == [None] * 3
    assert [case.file for case in cases if not case.ok] == []
