from tests.cli.conftest import hisearch

__all__ = ["hisearch"]
