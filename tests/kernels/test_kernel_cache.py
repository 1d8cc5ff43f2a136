"""Compiled kernels on disk: never a stale one, and no more compiled than a change asks for."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest

from hisearch.base import kernel_cache, prebuilt
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.fleet import compilation, head_start
from hisearch.kernels.layout import sim as la

ENTRY = '''"""An engine."""

from house.shared import LIMIT


def step(x):
    """One step."""
    return x + LIMIT
'''


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of two engines, one of which reads a constant of a third module."""
    package = tmp_path / "house"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "first.py").write_text(ENTRY)
    (package / "second.py").write_text("import numpy as np\n\nZERO = np.int64(0)\n")
    (package / "shared.py").write_text("LIMIT = 8\n")
    monkeypatch.setattr(kernel_cache, "_PACKAGE", package)
    monkeypatch.setattr(kernel_cache, "_ROOT", "house")
    monkeypatch.setattr(kernel_cache, "COMPILED_KERNELS", tmp_path / "kernels")
    return package


def _digests() -> tuple[str, str]:
    for memory in (kernel_cache._source, kernel_cache._sources, kernel_cache._read_all_kernels):
        memory.cache_clear()
    return kernel_cache.digest(["house.first"]), kernel_cache.digest(["house.second"])


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_comments_docstrings_and_layout_compile_nothing(house: Path) -> None:
    before = _digests()
    _edit(house / "first.py", '"""One step."""', '"""One step.\n\n    And more.\n    """\n    # Why.')
    _edit(house / "shared.py", "LIMIT = 8", "#: Requests.\n\nLIMIT   =  8")
    assert _digests() == before


def test_a_constant_of_another_module_compiles_what_reads_it_and_nothing_else(house: Path) -> None:
    first, second = _digests()
    _edit(house / "shared.py", "8", "9")
    changed, same = _digests()
    assert changed != first
    assert same == second


def test_what_a_later_process_reads_is_what_parsing_gives(house: Path) -> None:
    parsed = _digests()
    assert (kernel_cache.COMPILED_KERNELS / "sources.json").is_file()
    assert _digests() == parsed
    (kernel_cache.COMPILED_KERNELS / "sources.json").write_text("not JSON")
    assert _digests() == parsed


def test_a_module_that_is_not_there_is_named(house: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"house\.third"):
        kernel_cache.digest(["house.third"])


def test_engines_are_compiled_separately() -> None:
    """Work on SGLang and HiCache leaves vLLM's and TensorRT-LLM's kernels as they are."""
    for module in ("vllm.entry", "vllm.offload_entry", "vllm.lmcache_entry", "trtllm.entry"):
        closure = kernel_cache._closure([f"hisearch.kernels.{module}"])
        engines = {name.split(".")[2] for name in closure if name.startswith("hisearch.kernels.")}
        assert not engines & {"sglang", "hicache", "agents", "fleet", "routing"}


def test_no_kernel_depends_on_specs_or_the_search() -> None:
    modules = [f"hisearch.kernels.{module}" for module in (*engine_calls.MODULES.values(), "fleet.cluster")]
    packages = {name.split(".")[1] for name in kernel_cache._closure(modules)}
    assert packages == {"base", "kernels", "latency"}


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    """Holds what ``KernelCache`` relies on in numba: saved by the first process, loaded by the second."""
    program = (
        "from numba import types\n"
        "from hisearch.base.kernel_cache import is_cached\n"
        "from hisearch.latency.measured._tiles import _insert as kernel\n"
        "print(is_cached(kernel.py_func.__module__, kernel.__name__), end=' ')\n"
        "kernel.compile((types.float64[::1], types.float64))\n"
        "print(sum(kernel.stats.cache_hits.values()), is_cached(kernel.py_func.__module__, kernel.__name__))\n"
    )
    environment = {**os.environ, "HISEARCH_CACHE_DIR": str(tmp_path)}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["False 0 True\n", "True 1 True\n"]


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")
@pytest.mark.skipif(prebuilt.target() is None, reason="no wheel is made for this kind of machine")
@pytest.mark.slow
def test_kernels_that_came_with_the_installation_are_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from numba import types\n"
        "from hisearch.base import prebuilt\n"
        "prebuilt.FOLDER = Path(sys.argv[1])\n"
        "from hisearch.base.kernel_cache import folder_of, is_cached\n"
        "from hisearch.latency.measured._tiles import _insert as kernel\n"
        "print(is_cached(kernel.py_func.__module__, kernel.__name__), end=' ')\n"
        "kernel.compile((types.float64[::1], types.float64))\n"
        "print(sum(kernel.stats.cache_hits.values()), prebuilt.state(folder_of(kernel.py_func.__module__).name))\n"
    )
    target = prebuilt.target()
    assert target is not None
    builder = {"NUMBA_CPU_NAME": target.cpu, "NUMBA_CPU_FEATURES": target.features}

    def run(cache: str, brought: str, **more: str) -> str:
        environment = {**os.environ, "HISEARCH_CACHE_DIR": str(tmp_path / cache), **more}
        command = [sys.executable, "-c", program, str(tmp_path / brought)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    assert run("built", "nowhere", **builder) == "False 0 not in use: this installation has none\n"
    facts = {"cpu": target.cpu, "with": {"numba": "0.1"}}
    (tmp_path / "built" / "kernels" / "target.json").write_text(json.dumps(facts))
    if prebuilt._missing_features(target):
        pytest.skip(f"this processor is no {target.cpu}")
    assert run("empty", "built/kernels") == f"True 1 in use ({target.cpu})\n"
    assert "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set" in run("other", "built/kernels", **builder)
    for folder in (tmp_path / "built" / "kernels").glob("latency*"):
        folder.rename(folder.with_name("latency.measured._tiles-0"))
    assert run("last", "built/kernels") == (
        "False 0 not in use: their sources or versions differ (compiled with numba 0.1)\n"
    )


def test_no_kernels_are_loaded_that_the_processor_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels.vllm-0").mkdir()
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("NUMBA_CPU_NAME", raising=False)
    monkeypatch.setattr(prebuilt, "target", lambda: prebuilt.Target("x86-64-v9", "", ("quantum",)))
    prebuilt.refusal.cache_clear()
    assert prebuilt.folder("kernels.vllm-0") is None
    assert prebuilt.state("kernels.vllm-0") == "not in use: they need x86-64-v9, and this processor lacks quantum"
    monkeypatch.setattr(prebuilt, "target", lambda: None)
    prebuilt.refusal.cache_clear()
    assert prebuilt.state("kernels.vllm-0").startswith("not in use: none are made for")
    prebuilt.refusal.cache_clear()


def test_a_process_compiles_the_parts_that_it_is_handed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(compilation, "compile_part", compiled.append)
    monkeypatch.setattr(sys, "stdin", io.StringIO("2\n-1\n"))
    compilation.compile_parts()
    assert compiled == [2, -1]
    assert capsys.readouterr().out == "2\n-1\n"


def test_every_part_has_its_place_in_the_order() -> None:
    assert {*engine_calls.ENGINES, compilation.EVENT_LOOP} == set(compilation._ORDER)
    assert compilation._processes() >= 1


#: Stands for a helper: answers each unit, and writes into a file which it was handed.
_HELPER = """
import sys
for line in sys.stdin:
    with open(sys.argv[1], "a") as seen:
        seen.write(line)
    print(line, end="", flush=True)
"""


def _stand_in(seen: Path) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", _HELPER, str(seen)], text=True, bufsize=1, **pipes)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")
def test_a_first_run_compiles_the_event_loop_once_in_the_helper_that_began_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_process: list[int] = []
    monkeypatch.setattr(head_start, "COMPILED_KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(head_start, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(head_start, "helper", lambda: _stand_in(tmp_path / "helped"))
    monkeypatch.setattr(head_start, "cores", lambda: 2)
    monkeypatch.setattr(compilation, "_processes", lambda: 2)
    monkeypatch.setattr(compilation, "event_loop_is_compiled", lambda: False)
    monkeypatch.setattr(compilation, "missing_of", list)
    monkeypatch.setattr(compilation, "compile_part", in_process.append)
    head_start.begin()
    head_start.begin()  # a second time does nothing
    assert len(head_start._helpers) == 1
    compilation.prepare([la.SGLANG, la.VLLM, la.TRTLLM])
    helped = [int(line) for line in (tmp_path / "helped").read_text().split()]
    assert helped[0] == head_start.EVENT_LOOP
    assert sorted(in_process + helped) == sorted([head_start.EVENT_LOOP, la.SGLANG, la.VLLM, la.TRTLLM])
    assert head_start.take() is None


def test_nothing_is_begun_where_kernels_are_there_and_what_nobody_takes_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head_start, "COMPILED_KERNELS", tmp_path / "kernels")
    monkeypatch.setattr(head_start, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(head_start, "helper", lambda: _stand_in(tmp_path / "helped"))
    monkeypatch.setattr(head_start, "cores", lambda: 2)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    head_start.begin()
    (process,) = head_start._helpers
    head_start.stop()
    assert process.returncode not in (None, 0)
    for place in ("kernels", "prebuilt"):
        folder = tmp_path / place / "kernels.fleet.cluster-0"
        folder.mkdir(parents=True)
        head_start.begin()
        assert head_start._helpers == []
        folder.rmdir()
