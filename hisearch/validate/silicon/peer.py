"""aiconfigurator-core's prediction of measured runs, if that package is installed.

It is the aggregated estimate (``run_agg``) of a batch of the row's requests in flight, with one prompt's tokens in a
step, on the package's ``current`` tables. Operators are measured, steps are composed from them, and factors for
queueing replace a simulation. Model, split and formats are those of the row's simulation.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

from hisearch.latency.aic import MODULE, AicError, AicQuestion, aic_version, answered, configured, quiet
from hisearch.latency.estimators.aic import AicEstimator
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.validate.silicon.pricing import NotPriced, Price, Pricer
from hisearch.validate.silicon.rows import SiliconRow

#: Profile with the package's names.
PROFILE = "aic"


def installed() -> bool:
    """Whether the package is installed."""
    return importlib.util.find_spec(MODULE) is not None


class PeerPricer:
    """Prices rows by the package, with the workers of ``pricer``.

    Raises:
        AicError: a version with an unknown interface.
    """

    def __init__(self, pricer: Pricer) -> None:
        self.version = aic_version()
        self._pricer = pricer
        self._names = AicEstimator(PROFILE, Catalogue().get("LatencyProfile", PROFILE).spec)
        self._model = functools.cache(_model)

    def price(self, row: SiliconRow) -> Price:
        """Mean TTFT and TPOT of ``row`` as the package predicts them.

        Raises:
            NotPriced: the package has no data for the row.
        """
        in_flight = -(-row.concurrency // row.parallelism.attention_data)
        try:
            question = self._names.question(self._pricer.worker(row))
            with quiet():
                estimate = answered(question, lambda: self._estimate(question, row, in_flight))
        except AicError as error:
            raise NotPriced(str(error)) from error
        return Price(estimate["ttft"] / 1e3, estimate["tpot"] / 1e3)

    def _estimate(self, question: AicQuestion, row: SiliconRow, in_flight: int) -> dict[str, Any]:
        from aiconfigurator_core.sdk.config import RuntimeConfig

        model, database, backend = self._model(question)
        runtime = RuntimeConfig(batch_size=in_flight, isl=row.input_tokens, osl=row.output_tokens)
        result: dict[str, Any] = backend.run_agg(
            model, database, runtime, ctx_tokens=row.input_tokens
        ).get_result_dict()
        return result


def _model(question: AicQuestion) -> tuple[Any, Any, Any]:
    """The package's model, tables and engine of a worker."""
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model
    from aiconfigurator_core.sdk.perf_database import get_database

    config = build_model_config(**configured(question))
    database = get_database(question.system, question.backend, question.backend_version or "current")
    return get_model(question.model, config, question.backend), database, get_backend(question.backend)
