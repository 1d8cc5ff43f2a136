"""Latency laws as text."""

from __future__ import annotations

import pytest

from hisearch.latency.step_cost import law_costs, step_seconds
from hisearch.validate.step_law import StepLaw, parse_step_law


@pytest.mark.parametrize(
    ("text", "law"),
    [
        (
            "0.005 + 2e-5*sum(new) + 1e-9*sum(new*(computed+(new+1)/2)), over the requests of the step's batch",
            (0.005, 2e-5, 1e-9),
        ),
        ("0.005 + 2e-5*Σnew + 1e-9*Σ new*(computed+(new+1)/2)", (0.005, 2e-5, 1e-9)),
        ("1e-9*sum(new*(computed+(new+1)/2)) + 0.005", (0.005, 0.0, 1e-9)),
        ("2e-5 * sum(new)", (0.0, 2e-5, 0.0)),
        ("0.02", (0.02, 0.0, 0.0)),
        ("0.02, whatever is in the batch", (0.02, 0.0, 0.0)),
        ("1", (1.0, 0.0, 0.0)),
        ("sum(3e-5*new)", (0.0, 3e-5, 0.0)),
        ("sum(new)*3e-5 + 0.001 + 0.002", (0.003, 3e-5, 0.0)),
        ("2*(1e-3 + 1e-5*sum(new))", (2e-3, 2e-5, 0.0)),
        ("5e-3 + sum(new)/50000", (5e-3, 2e-5, 0.0)),
        ("4e-9*sum(new*computed + new*(new+1)/2)", (0.0, 0.0, 4e-9)),
        ("4e-9*sum(new*computed) + 2e-9*sum(new**2) + 2e-9*sum(new)", (0.0, 0.0, 4e-9)),
        ("4e-9*sum(new*computed + new*new/2)  + 1e-5*sum(new)", (0.0, 1e-5 - 2e-9, 4e-9)),
    ],
)
def test_laws_are_read(text: str, law: tuple[float, float, float]) -> None:
    assert parse_step_law(text) == pytest.approx(law, rel=1e-12, abs=0)


@pytest.mark.parametrize(
    "text",
    [
        "", "fast", "0.005 + 2e-5*sum(tokens)", "0.005 - 0.006", "-1", "1e-9*sum(new*computed)", "sum(computed)",
        "1e-9*sum(new*(computed+new))", "sum(new)*sum(new)", "1/sum(new)", "1/0", "new", "0.1 + sum(1)", "sum(new**3)",
        "sum(new, new)", "max(new)", "__import__('os')", "0.005 + + ", "(" * 400, "9" * 2000, "1e999", "True", "1j",
        "sum(new*True)", "0.1 if new else 0.2", "Σ", "\x00",
    ],
)  # fmt: skip
def test_other_forms_are_refused_with_what_is_understood(text: str) -> None:
    with pytest.raises(ValueError, match=r"understood is a sum of a constant, C\*sum\(new\)"):
        parse_step_law(text)


def test_law_and_its_tables_agree() -> None:
    law = StepLaw(0.005, 2e-5, 1e-9)
    chunks, contexts = [(300, 128), (17, 0)], [1000, 2500, 9]
    batch = [*chunks, *((1, context) for context in contexts)]
    tables = step_seconds(law_costs(*law), chunks, [context + 1 for context in contexts])
    assert law.seconds(batch) == pytest.approx(tables, rel=1e-14)
