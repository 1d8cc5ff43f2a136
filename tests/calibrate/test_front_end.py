"""The front end's constants are found again where they are known, and pauses of the machine do not bend them."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.calibrate.served.front_end import FrontEndSample, fit_front_end

REQUEST_S, READ_S, PROMPT_TOKEN_S, STREAM_S = 8e-3, 1e-3, 3e-6, 60e-6


def sample(requests: int, tokens: float, pause_s: float = 0.0) -> FrontEndSample:
    """What a client sees, request by request."""
    each_s = READ_S + PROMPT_TOKEN_S * tokens
    read_s = float(np.mean([REQUEST_S - READ_S + each_s * (place + 1) for place in range(requests)]))
    first_s = read_s + STREAM_S * (1 + (requests - 1) / 4) + pause_s
    return FrontEndSample(requests, tokens, first_s, read_s + STREAM_S * (1 + (requests - 1) / 2) + pause_s)


SAMPLES = [sample(count, tokens) for count in (1, 4, 16) for tokens in (30.0, 500.0, 4000.0)]


def test_constants_are_found_again() -> None:
    fit = fit_front_end(SAMPLES)
    assert fit.times.prompt_token_s == pytest.approx(PROMPT_TOKEN_S, rel=0.02)
    assert fit.times.read_s == pytest.approx(READ_S, rel=0.05)
    assert fit.times.stream_s == pytest.approx(STREAM_S, rel=0.05)
    assert fit.times.request_s == pytest.approx(REQUEST_S, rel=0.02)
    assert fit.error_s < 1e-4


def test_pauses_during_a_few_experiments_do_not_bend_the_law() -> None:
    paused = [sample(1, 500.0, 0.2), sample(4, 30.0, 0.1)]
    fit = fit_front_end([*SAMPLES, *paused])
    assert fit.times.request_s == pytest.approx(REQUEST_S, rel=0.05)
    assert fit.times.prompt_token_s == pytest.approx(PROMPT_TOKEN_S, rel=0.05)


def test_too_few_experiments_are_refused() -> None:
    with pytest.raises(ValueError, match="5 experiments are too few"):
        fit_front_end(SAMPLES[:5])
