"""What hisearch ships, fitted anew: for its maintainers, and no part of the wheel.

``profiles`` (``python -m refit profiles``) fits operators' laws on aiconfigurator's tables: ``aic_tables``,
``aic_collectives`` and ``aic_files`` read them, ``boards`` lists accelerators, ``shipped`` fits one profile, ``former``
the laws of engines' former versions, with what is ``published`` of them. ``host_fit`` (``python -m refit hosts``) fits
the host work of engines to served runs; ``hosts`` puts it into profiles. ``grammar_times`` measures xgrammar,
``front_ends`` engines' servers.
"""
