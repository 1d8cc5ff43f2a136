"""The front end's constants are found again where they are known, and pauses of the machine do not bend them."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.calibrate.served.front_end import ClientSample, FrontEndSample, fit_front_end

REQUEST_S, READ_S, PROMPT_TOKEN_S, STREAM_S = 8e-3, 1e-3, 3e-6, 60e-6
#: Of a request's time, what passes before the server's stamp of its arrival and behind its last one.
OUTSIDE_S = 2.5e-3


def alone(tokens: float, pause_s: float = 0.0) -> FrontEndSample:
    """A client's seconds beside the engine's."""
    seconds = REQUEST_S + PROMPT_TOKEN_S * tokens + STREAM_S + pause_s
    return FrontEndSample(1, 0, tokens, seconds, seconds)


def burst(requests: int, pause_s: float = 0.0) -> FrontEndSample:
    """A client's seconds beside the server's, request by request."""
    read_s = OUTSIDE_S + float(np.mean([READ_S * place for place in range(requests)])) + pause_s
    others = requests - 1
    return FrontEndSample(requests, 0, 0.0, read_s + STREAM_S * (1 + others / 4), read_s + STREAM_S * (1 + others / 2))


def late(streams: int) -> FrontEndSample:
    """Likewise of one request that comes while others are streamed."""
    return FrontEndSample(1, streams, 0.0, OUTSIDE_S + STREAM_S * (1 + streams / 2), None)


SAMPLES = [
    *(alone(tokens) for tokens in (30.0, 100.0, 300.0, 1000.0, 2000.0, 4000.0)),
    *(burst(requests) for requests in (2, 4, 16)),
    *(late(streams) for streams in (1, 7, 15)),
]


def test_constants_are_found_again() -> None:
    fit = fit_front_end(SAMPLES)
    assert fit.times.prompt_token_s == pytest.approx(PROMPT_TOKEN_S, rel=0.02)
    assert fit.times.read_s == pytest.approx(READ_S, rel=0.05)
    assert fit.times.stream_s == pytest.approx(STREAM_S, rel=0.05)
    assert fit.times.request_s == pytest.approx(REQUEST_S, rel=0.02)
    assert fit.error_s < 1e-4


def test_pauses_during_a_few_experiments_do_not_bend_the_law() -> None:
    fit = fit_front_end([*SAMPLES, alone(500.0, 0.2), burst(4, 0.1)])
    assert fit.times.request_s == pytest.approx(REQUEST_S, rel=0.05)
    assert fit.times.prompt_token_s == pytest.approx(PROMPT_TOKEN_S, rel=0.05)
    assert fit.times.read_s == pytest.approx(READ_S, rel=0.05)


def test_too_few_requests_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="5 requests alone are too few"):
        fit_front_end(SAMPLES[1:])


class TestClients:
    """A benchmark's client takes the place of the one that calibrated."""

    @staticmethod
    def waited(client_s: float, streams: float) -> ClientSample:
        server_s = 30e-3
        return ClientSample(60, server_s + OUTSIDE_S + client_s + STREAM_S * (1 + streams / 2), server_s, streams)

    @pytest.mark.parametrize("client_s", [-1e-3, 0.0, 2e-3])
    def test_its_own_time_is_found_again(self, client_s: float) -> None:
        fit = fit_front_end(SAMPLES)
        seen = fit.of_client([self.waited(client_s, streams) for streams in (0.5, 3.0, 6.0)])
        assert seen.client_s == pytest.approx(client_s, abs=5e-5)
        assert seen.times == fit.times.model_copy(update={"request_s": fit.times.request_s + seen.client_s})

    def test_more_requests_count_for_more(self) -> None:
        few, many = self.waited(0.0, 1.0), self.waited(2e-3, 1.0)._replace(requests=180)
        assert fit_front_end(SAMPLES).of_client([few, many]).client_s == pytest.approx(1.5e-3, abs=5e-5)

    def test_other_clocks_are_refused(self) -> None:
        with pytest.raises(ValueError, match="timed by other clocks, or on another server"):
            fit_front_end(SAMPLES).of_client([self.waited(0.1, 1.0)])
