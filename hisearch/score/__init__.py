"""Pure functions of a simulation's result: percentiles, goodput, SLO attainment, capacity, cost, energy.

``evaluate`` holds a result against an SLO, by ``terms``, ``classes`` and ``percentiles``; ``capacity`` and
``steady_state`` say which load it holds; ``energy``, ``watts`` and ``components`` what it draws.
Imports ``simulate`` and what is below it; ``search``, ``report``, ``api`` and ``cli`` import from here.
"""
