"""Results of benchmark tools, a file each: traces of what was sent, and measurements of what came back.

To add one: a file with a declaration as of the folder ``formats`` beside this one, and ``measurements(results)`` in
place of ``read``. It returns a ``Measurement`` for every run in the file: request by request where the tool kept them,
else its summary. Names in the docstring say which of the tool's figures is TPOT and which ITL. Nothing else
lists the tools.

Imports modules of ``importers`` and ``base``.
"""
