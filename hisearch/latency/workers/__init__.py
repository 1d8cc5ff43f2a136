"""One worker's operators, priced by the roofline or by fitted laws: seconds of any load, before they are tabulated.

Imports ``laws`` and ``matrices``.
"""
