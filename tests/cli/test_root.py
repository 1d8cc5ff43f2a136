"""The command as a whole: its start, usage errors, where errors go."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

import hisearch as package
from hisearch.api.run_folder import plain
from hisearch.cli import compilation
from hisearch.cli.compilation import end_notes, note_compilation
from hisearch.kernels.layout import sim as la
from hisearch.simulate.engine import Variant, prepare
from tests.cli.conftest import Hisearch

VERBS = (
    "run", "size", "simulate", "trace", "report", "export", "verify", "dashboard", "compare", "doctor", "list",
    "schema", "calibrate", "bench",
)  # fmt: skip

#: Modules that the command may not import before it knows its verb.
HEAVY = ("numpy", "pandas", "numba", "scipy", "optuna", "plotly", "pyarrow", "pydantic", "rich", "jinja2", "yaml")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_names_every_verb(hisearch: Hisearch) -> None:
    ran = hisearch("--help")
    assert ran.code == 0
    assert all(f"\n  {verb} " in ran.out for verb in VERBS)
    assert not any(line.endswith("...") for line in ran.out.splitlines()[1:])


def test_help_answers_within_300_ms() -> None:
    """On a machine that imports typer, which draws the help, in 75; on a slower one in proportion."""
    walls = []
    for _ in range(5):
        started = time.perf_counter()
        assert _python("-m", "hisearch", "--help").returncode == 0
        walls.append(time.perf_counter() - started)
    bare = min(_import_typer_s() for _ in range(5))
    assert min(walls) < max(0.3, 4.0 * bare)


def _import_typer_s() -> float:
    started = time.perf_counter()
    assert _python("-c", "import typer").returncode == 0
    return time.perf_counter() - started


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from hisearch.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)\n"
    )
    assert _python("-c", program).stderr.strip() == "[]"


def test_importing_the_package_imports_nothing_heavy() -> None:
    completed = _python("-c", f"import sys, hisearch; print(sorted(set({HEAVY!r}) & set(sys.modules)))")
    assert completed.stdout.strip() == "[]"


def test_an_interrupted_process_ends_at_once_whatever_its_threads_do() -> None:
    program = (
        "import threading, time\n"
        "import hisearch.cli.main as command\n"
        "threading.Thread(target=time.sleep, args=(120.0,)).start()\n"
        "def interrupted(**_):\n    print('told')\n    raise SystemExit(130)\n"
        "command.app = interrupted\n"
        "command.program()\n"
    )
    started = time.perf_counter()
    ended = _python("-c", program)
    assert (ended.returncode, ended.stdout) == (130, "told\n")
    assert time.perf_counter() - started < 100.0


def test_every_public_name_exists() -> None:
    assert {"load_study", "load_run", "load_trace", "simulate_deployment"} <= set(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
        assert name in dir(package)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_version(hisearch: Hisearch) -> None:
    assert hisearch("--version").out == f"hisearch {package.__version__}\n"


@pytest.mark.parametrize("arguments", [("bogus",), ("run", "--bogus"), ("simulate", "x"), ("run",), ("schema", "Foo")])
def test_usage_errors_exit_with_2(hisearch: Hisearch, arguments: tuple[str, ...]) -> None:
    ran = hisearch(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Usage: hisearch" in ran.err


def test_an_error_is_one_line_on_standard_error(hisearch: Hisearch, workdir: Path) -> None:
    (workdir / "small.yaml").write_text((workdir / "small.yaml").read_text().replace("budget:", "budgte:"))
    ran = hisearch("run", "small.yaml")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("hisearch: error: small.yaml:")
    assert ran.err.count("\n") == 1
    assert "budgte" in ran.err


def test_every_problem_of_a_document_is_reported(hisearch: Hisearch, workdir: Path) -> None:
    ran = hisearch("run", "small.yaml", "--set", "spec.budget.simulations=0", "--set", "spec.seed=-1")
    assert ran.code == 1
    assert ran.err.count("hisearch: error: ") == 2


def test_debugging_shows_where_an_error_came_from(
    hisearch: Hisearch, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISEARCH_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        hisearch("report", workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("list", 0),
        ("schema Study", 0),
        ("--help", 0),
        ("run --help", 0),
        ("simulate pair.yaml --trace visits.yaml -q", 0),
        ("simulate pair.yaml --trace visits.yaml -q --json", 0),
        ("run small.yaml -q", 0),
        ("run small.yaml -q --json --set spec.slo.terms.0.at_most_s=0.0001", 99),
    ],
)
def test_a_reader_that_goes_away_changes_nothing(workdir: Path, arguments: str, code: int) -> None:
    # The reader has gone before anything is written.
    command = f"exec 3> >(exec true); sleep 0.2; '{sys.executable}' -m hisearch {arguments} >&3"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=workdir)
    assert (completed.returncode, completed.stderr) == (code, "")


def test_errors_do_not_need_a_reader_either(workdir: Path) -> None:
    command = f"exec 3> >(exec true); sleep 0.2; '{sys.executable}' -m hisearch run nowhere.yaml 2>&3"
    completed = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=workdir)
    assert (completed.returncode, completed.stdout, completed.stderr) == (1, "", "")


def test_a_terminal_without_unicode_is_no_error(workdir: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "hisearch", "list"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert completed.returncode == 0
    assert "qwen3-32b" in completed.stdout


def _compile(*variants: Variant) -> None:
    """What a verb does that compiles these engines."""
    note_compilation()
    prepare(variants)
    end_notes()


def test_a_cold_start_is_announced_once_something_is_to_be_compiled(
    compiled_kernels: set[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    note_compilation()
    end_notes()
    assert capsys.readouterr() == ("", "")
    _compile(("vllm", "", None))
    assert capsys.readouterr().err.count("hisearch: compiling kernels: the event loop and vLLM (about a minute") == 1
    compiled_kernels.update({("fleet.cluster", "run"), ("vllm.entry", "engine_entry")})
    _compile(("vllm", "", None))
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")
def test_so_is_an_engine_with_tiers_that_is_still_to_be_compiled(
    compiled_kernels: set[tuple[str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled_kernels.update({("fleet.cluster", "run"), ("vllm.entry", "engine_entry")})
    _compile(("vllm", "", None), ("vllm", "", "offload"))
    assert capsys.readouterr().err.startswith("hisearch: compiling kernels: vLLM's offloading as of 0.33 (about")
    compiled_kernels.add(("vllm.chunk_offload_entry", "engine_entry"))
    _compile(("vllm", "", None), ("vllm", "", "offload"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")
def test_what_is_compiled_is_named_when_it_is(
    compiled_kernels: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compilation, "LOOK_S", 0.02)
    note_compilation()
    compilation._watch([la.VLLM])
    time.sleep(0.3)
    compiled_kernels.add(("fleet.cluster", "run"))
    time.sleep(0.3)
    end_notes()
    assert "hisearch: compiled after 0 s: the event loop; still to come: vLLM\n" in capsys.readouterr().err


def test_json_has_no_infinite_numbers() -> None:
    data = {"a": math.inf, "b": [math.nan, 1.5], "c": Path("x"), 1: True, "d": None}
    assert plain(data) == {"a": None, "b": [None, 1.5], "c": "x", "1": True, "d": None}
    with pytest.raises(TypeError, match="set"):
        plain({"a": {1}})
