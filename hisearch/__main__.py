"""``python -m hisearch``: the same as the ``hisearch`` command."""

from hisearch.cli.main import program

if __name__ == "__main__":
    program()
