"""Measured serving runs, repeated in the simulator: closed loops of fixed lengths, row by row of a CSV file.

``rows`` reads the file, ``campaigns``, ``conditions``, ``inferencemax`` and ``recipes`` say how a row was run;
``pricing`` and ``disaggregated`` simulate it, ``reach`` tells rows beyond their GPU's limits; ``report`` and ``peer``
compare.
Imports ``simulate``, ``latency`` and what is below them.
"""
