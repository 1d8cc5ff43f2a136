"""Every YAML kind as a typed, strict model; catalogue look-up; overrides; errors with file, line and key.

``base``, ``errors``, ``source``, ``yaml_nodes``, ``annotations``, ``wording`` and the like are the foundations; kinds
lie in ``models``, ``machines``, ``workloads``, ``deployments`` and ``studies``; ``documents`` reads files and looks
references up, ``checks`` is ``hisearch doctor``. All packages but ``base`` may import from here; it imports ``base``
alone.
"""
