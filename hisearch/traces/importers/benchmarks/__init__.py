"""Results of benchmark tools, a file each: traces of what was sent, and measurements of what came back.

To add one: a file as of the folder ``formats`` beside this one, whose ``read`` is ``read_trace`` of its
``measurements(results)``. That returns a ``Measurement`` for every run in the file: request by request where the tool
kept them, else its summary. Names in the docstring say which of the tool's figures is TPOT and which ITL. Nothing else
lists the tools.
"""
