"""``python -m hisearch``: the same as the ``hisearch`` command."""

from hisearch.cli.main import main

if __name__ == "__main__":
    main()
