"""Clients of campaigns, as runs are priced with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hisearch.latency.costs import FrontEnd
from hisearch.validate.silicon import pricing
from hisearch.validate.silicon.clients import KEEPS_CONNECTIONS, NEW_CONNECTIONS, Client
from hisearch.validate.silicon.conditions import conditions_of
from hisearch.validate.silicon.pricing import Pricer
from tests.validate.test_silicon import only_row


def test_a_connection_for_each_request_takes_time_alone_and_in_line() -> None:
    front = FrontEnd(request_s=6e-3, read_s=1e-3, prompt_token_s=2e-6, stream_s=5e-5)
    seen = NEW_CONNECTIONS.before(front)
    assert seen.request_s - front.request_s == pytest.approx(NEW_CONNECTIONS.request_s)
    assert seen.read_s - front.read_s == pytest.approx(NEW_CONNECTIONS.in_line_s)
    assert seen._replace(request_s=6e-3, read_s=1e-3) == front
    assert 0.0 < NEW_CONNECTIONS.in_line_s < NEW_CONNECTIONS.request_s
    assert KEEPS_CONNECTIONS.before(front) == front


def test_a_front_end_that_takes_no_time_stays_so() -> None:
    assert NEW_CONNECTIONS.before(FrontEnd()) == FrontEnd()


#: A row of InferenceMAX: its lengths, and attention's data parallelism stated.
INFERENCEMAX = {"input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1"}


@pytest.mark.parametrize(("cells", "client"), [(INFERENCEMAX, NEW_CONNECTIONS), ({}, KEEPS_CONNECTIONS)])
def test_each_campaign_names_its_client(tmp_path: Path, cells: dict[str, str], client: Client) -> None:
    assert conditions_of(only_row(tmp_path, **cells)).client == client


def test_a_row_is_priced_behind_its_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = only_row(tmp_path, **INFERENCEMAX, concurrency="1")
    own = Pricer().price(row)
    kept = replace(conditions_of(row), client=KEEPS_CONNECTIONS)
    monkeypatch.setattr(pricing, "conditions_of", lambda _: kept)
    others = Pricer().price(row)
    assert own.ttft_s - others.ttft_s == pytest.approx(NEW_CONNECTIONS.request_s, rel=0.01)
    assert own.tpot_s == pytest.approx(others.tpot_s, rel=0.01)
