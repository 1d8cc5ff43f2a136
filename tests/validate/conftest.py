from collections.abc import Callable

import pytest

from tests.validate.recordings import CASES, Made, make


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Recordings by the name of their case, each made once; a caller gets a copy of its own."""
    made: dict[str, Made] = {}

    def of(name: str) -> Made:
        if name not in made:
            made[name] = make(CASES[name], tmp_path_factory.mktemp(name))
        return made[name].copy()

    return of
