"""A model's published ``config.json``, translated into a :class:`~hisearch.specs.models.model.ModelSpec`.

``families`` says what each architecture is made of: a new one is a line there. ``attention``, ``feed_forward`` and
``formats`` translate its parts, ``translation`` puts them together. Others import ``translation`` alone (``documents``
reads files with it); nothing here knows engines.

Imports ``models``.
"""
