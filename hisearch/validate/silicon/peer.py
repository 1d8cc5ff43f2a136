"""aiconfigurator-core's own prediction of measured runs, where that package is installed.

Its aggregated estimate (``run_agg``) of a batch of the row's requests in flight, with one prompt's tokens in a step, on
the tables that it calls current: operators as it measured them and steps as it puts them together, with factors for
queueing in place of a simulation. Model, split and formats are those that the row is simulated with.
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
    """Whether there is a package to ask."""
    return importlib.util.find_spec(MODULE) is not None


class PeerPricer:
    """Asks the package for rows as ``pricer`` understands them.

    Raises:
        AicError: of a version whose interface is not known.
    """

    def __init__(self, pricer: Pricer) -> None:
        self.version = aic_version()
        self._pricer = pricer
        self._names = AicEstimator(PROFILE, Catalogue().get("LatencyProfile", PROFILE).spec)
        self._model = functools.cache(_model)

    def price(self, row: SiliconRow) -> Price:
        """Mean TTFT and TPOT of ``row`` as the package predicts them.

        Raises:
            NotPriced: what it has no data for.
        """
        in_flight = -(-row.concurrency // row.parallelism.attention_data)
        try:
            question = self._names.question(self._pricer.worker(row))
            with quiet():
                found = answered(question, lambda: self._estimate(question, row, in_flight))
        except AicError as error:
            raise NotPriced(str(error)) from error
        return Price(found["ttft"] / 1e3, found["tpot"] / 1e3)

    def _estimate(self, question: AicQuestion, row: SiliconRow, in_flight: int) -> dict[str, Any]:
        from aiconfigurator_core.sdk.config import RuntimeConfig

        model, database, backend = self._model(question)
        wanted = RuntimeConfig(batch_size=in_flight, isl=row.input_tokens, osl=row.output_tokens)
        result: dict[str, Any] = backend.run_agg(model, database, wanted, ctx_tokens=row.input_tokens).get_result_dict()
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
