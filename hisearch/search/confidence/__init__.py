"""How sure a recommendation is: draws of uncertain inputs, the price of a higher probability, what would change it.

Imports ``driver``, which runs the stages in order.
"""
