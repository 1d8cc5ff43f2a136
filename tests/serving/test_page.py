"""The page "from my running server to a cheaper one": its commands on a real server (``make test-serving``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hisearch.observe.client import Client
from hisearch.observe.prometheus import parse_metrics
from hisearch.specs.documents.resolve import load_deployment
from tests.docs.pages import ROOT, commands
from tests.engines.environments import NoEngineError
from tests.serving.circle import export_circle, free_port
from tests.serving.environment import server_python
from tests.serving.server import START_S, drive, served

PAGE = ROOT / "docs" / "how-to" / "cheaper-server.md"
#: Words of the page -> what they are here: shorter, and a model and a core of this test.
_SHORTER = {"600": "40", "h100-sxm": "core.yaml"}
#: Answers that a machine under other load may give: predictions differ, nothing meets the SLO.
_ANSWERS = {0, 97, 98, 99}


@pytest.mark.slow
def test_the_page_runs_on_a_real_server(tmp_path: Path) -> None:
    if not os.environ.get("HISEARCH_SERVING"):
        pytest.skip("NOT CHECKED: a real server; run `make test-serving`")
    try:
        python = server_python()
    except NoEngineError as error:
        pytest.skip(f"NOT CHECKED: {error}")
    model, launch = export_circle(python, tmp_path)
    with served(tmp_path / "export/vllm/run.sh", model, python, tmp_path / "logs", free_port()) as server:
        for place, arguments in commands(PAGE):
            words = [_SHORTER.get(word, word.replace("http://10.0.0.7:8000", server.url)) for word in arguments]
            if arguments[0] == "observe":
                words += ["--model", "tiny.yaml"]
                load = threading.Thread(
                    target=drive,
                    args=(python, server.url, model, tmp_path / "bench.json"),
                    kwargs={"requests": 60, "rate_rps": 2.0, "seed": 1},
                )
                load.start()
                wait_for_load(server.url)
            command = [sys.executable, "-m", "hisearch", *words, "-q"]
            ran = subprocess.run(
                command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            if arguments[0] == "observe":
                load.join()
            assert ran.returncode in _ANSWERS, f"{place}: {' '.join(words)}: {ran.stderr}"
            print(ran.stdout)
    assert (tmp_path / "observed/profile.yaml").is_file()
    observed = load_deployment(tmp_path / "observed/deployment.yaml").deployment.pool
    # As exported, and as the flags of a server on CPUs have it.
    assert observed.engine == launch.pool.engine.model_copy(update={"enforce_eager": True})
    assert (observed.tensor_parallel, observed.kv_dtype) == (launch.pool.tensor_parallel, launch.pool.kv_dtype)
    observation = json.loads((tmp_path / "observed/observation.json").read_text())
    # With the block that vLLM keeps for itself.
    assert observation["servers"][0]["kv_tokens"] == launch.kv_capacity_tokens


def wait_for_load(url: str) -> None:
    """Until the server works: the benchmark takes its time to begin."""
    end_s = time.monotonic() + START_S
    while not parse_metrics(Client(url).get("/metrics").text).total("vllm:num_requests_running"):
        assert time.monotonic() < end_s, f"no request within {START_S:g} s"
        time.sleep(0.05)
