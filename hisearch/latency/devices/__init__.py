"""Workers of several devices: operators mapped to devices, transfers between them, overlapped phases.

``mapping`` says which device has which operator, ``work`` and ``layer`` what it is, ``flow`` and ``compose`` how phases
overlap. ``afd`` keeps attention and FFN apart; ``tables``, ``fitted`` and ``measured`` price by files.
Imports ``laws``, ``measured``, ``workers``, ``estimators`` and ``device_memory``.
"""
