"""``validate router``: recordings of the real router, and a changed one."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hisearch.base.blake3 import first_words
from hisearch.validate.router.replay import validate_router, validate_routers
from hisearch.validate.router.texts import text_tree

FOLDER = (
    Path(os.environ.get("HISEARCH_SHARED") or Path(__file__).parents[4] / "shared") / "validation" / "sglang_router"
)
FILES = sorted(FOLDER.glob("*.json.gz"))
#: Of Dynamo's router, by ``python -m hisearch.record dynamo --random 4``, and two of ``--seed 100 --with events``.
DYNAMO = sorted((Path(__file__).parent / "dynamo").glob("*.json.gz"))
#: Before prefill and decode workers, by ``python -m hisearch.record router --random 16 --with pd``: some of them.
PD = sorted((Path(__file__).parent / "pd").glob("*.json.gz"))
needs_recordings = pytest.mark.skipif(
    not FILES, reason="no recordings of routers: set HISEARCH_SHARED to the folder that holds validation/"
)


def test_blake3_gives_the_published_digests() -> None:
    """Of the empty input; longer ones are held by recordings of consistent_hashing."""
    words = first_words([b"", b"session-1"]).astype("<u8")
    assert words[0].tobytes().hex() == "af1349b9f5f9a1a6"
    assert words.shape == (2,)


def test_texts_share_exactly_what_they_begin_with_alike() -> None:
    texts = ["abc", "abd", "ab", "", "xyz", "abc"]
    tree = text_tree(texts)
    assert tree.end[tree.prompt_node].tolist() == [len(text) for text in texts]
    assert tree.prompt_node[0] == tree.prompt_node[5]
    assert tree.parent[tree.prompt_node[0]] == tree.parent[tree.prompt_node[1]] == tree.prompt_node[2]
    assert (tree.parent[1:] < range(1, len(tree.parent))).all()


@needs_recordings
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_choice_is_the_real_router_s(path: Path) -> None:
    case = validate_router(path)
    assert (case.equal, case.equal_trimmings, case.equal_redrawings) == (
        case.choices, case.trimmings, case.redrawings
    )  # fmt: skip
    assert case.ok


@pytest.mark.parametrize("path", DYNAMO, ids=lambda path: path.name)
def test_every_choice_is_dynamo_s(path: Path) -> None:
    case = validate_router(path)
    assert case.error is None
    assert case.equal == case.choices > 200
    assert case.drawn < case.choices / 10


@pytest.mark.parametrize("path", PD, ids=lambda path: path.name)
def test_every_choice_before_prefill_and_decode_workers_is_the_real_router_s(path: Path) -> None:
    case = validate_router(path)
    assert case.error is None
    assert case.ok
    assert case.equal == case.choices > 100


def test_an_answer_counts_from_its_first_byte_on_where_it_is_a_stream(tmp_path: Path) -> None:
    """Before prefill and decode workers; the same choices with whole answers are another router's."""
    recording: dict[str, Any] = json.loads(gzip.decompress(PD[0].read_bytes()))
    assert recording["settings"]["stream"]
    recording["settings"]["stream"] = False
    (tmp_path / "changed.json").write_text(json.dumps(recording))
    assert not validate_router(tmp_path / "changed.json").ok


def test_dynamo_with_another_weight_is_another_router(tmp_path: Path) -> None:
    recording: dict[str, Any] = json.loads(gzip.decompress(DYNAMO[1].read_bytes()))
    recording["settings"]["overlap_score_weight"] *= 1.5
    (tmp_path / "changed.json").write_text(json.dumps(recording))
    assert not validate_router(tmp_path / "changed.json").ok


def test_what_dynamo_draws_is_not_replayed(tmp_path: Path) -> None:
    recording: dict[str, Any] = json.loads(gzip.decompress(DYNAMO[0].read_bytes()))
    recording["settings"]["router_temperature"] = 0.5
    (tmp_path / "changed.json").write_text(json.dumps(recording))
    (case,) = validate_routers([tmp_path / "changed.json"])
    assert "replayed without router_temperature" in str(case.error)


def test_without_its_workers_events_dynamo_s_router_knows_no_cache(tmp_path: Path) -> None:
    recording: dict[str, Any] = json.loads(gzip.decompress(DYNAMO[-1].read_bytes()))
    assert recording["settings"]["use_kv_events"]
    recording["events"] = [event for event in recording["events"] if event[0] != "stored" and event[0] != "removed"]
    (tmp_path / "changed.json").write_text(json.dumps(recording))
    assert not validate_router(tmp_path / "changed.json").ok


@needs_recordings
def test_another_worker_is_a_difference(tmp_path: Path) -> None:
    recording: dict[str, Any] = json.loads(gzip.decompress((FOLDER / "round-robin-4.json.gz").read_bytes()))
    number = next(k for k, event in enumerate(recording["events"]) if event[:2] == ["send", 7])
    recording["events"][number][2] = (recording["events"][number][2] + 1) % 4
    (tmp_path / "changed.json").write_text(json.dumps(recording))
    case = validate_router(tmp_path / "changed.json")
    assert not case.ok
    assert case.equal == case.choices - 1
    assert case.first_difference is not None
    assert case.first_difference.event == number


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"policy": "weighty"}, "policy: "),
        ({"settings": {"warmth": 3}}, "settings.warmth: is not simulated"),
        ({"events": [["send", 0, 9]]}, "events.0: expected a worker from 0 to 1, not 9"),
        ({"events": [["finish", 0]]}, "events.0: prompt 0 is not in flight"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"policy": "random", "settings": {}, "workers": 2, "events": []} | change))
    (case,) = validate_routers([path])
    assert case.error is not None
    assert message in case.error
