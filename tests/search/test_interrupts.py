import signal
import threading
import time

import pytest

from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.records import interrupts as module
from hisearch.search.records.interrupts import Interrupts
from hisearch.specs.studies.study import BudgetSpec
from tests.search.fakes import FakeEvaluator
from tests.search.test_runner import jobs


def test_a_signal_interrupts_what_is_not_deferred_and_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts((signal.SIGINT, signal.SIGTERM)) as interrupts:
        assert interrupts.exit_code is None
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert interrupts.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_is_deferred_goes_on_until_it_waits() -> None:
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            pytest.fail("this is not reached")
    with Interrupts() as interrupts, interrupts.deferred():
        with pytest.raises(KeyboardInterrupt), interrupts.waiting():
            signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 130


def test_the_same_signal_passed_on_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAME_SIGNAL_S", 0.2)
    with Interrupts() as interrupts, interrupts.deferred():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.25)
        with pytest.raises(KeyboardInterrupt):  # a second one is not deferred
            signal.raise_signal(signal.SIGINT)


def test_a_search_that_is_interrupted_between_simulations_asks_for_no_more() -> None:
    with Interrupts() as interrupts, interrupts.deferred():
        runner = TrialRunner(FakeEvaluator(), BudgetSpec(), workers=1, interrupts=interrupts)
        assert all(runner.run(jobs(3)))
        signal.raise_signal(signal.SIGINT)
        assert runner.run(jobs(5)).count(None) == 2
    assert runner.stopped == "interrupted"


def test_in_another_thread_nothing_is_installed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def enter() -> None:
        with Interrupts(exit_at_once=True):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before]
