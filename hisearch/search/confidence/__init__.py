"""How sure a recommendation is: draws of uncertain inputs, the price of a higher probability, what would change it.

Imports ``refine`` and what is below it, and ``driver``, which runs the stages in order.
"""
