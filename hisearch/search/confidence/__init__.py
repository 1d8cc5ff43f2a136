"""How sure a recommendation is: draws of what may be otherwise, what being surer costs, what would change it.

Stands on ``driver``, which runs the stages in a row.
"""
