"""What nodes serve, what is still free on them, and whether a set of units fits (R5-R8, P2, P3).

Owns the arithmetic of units and the node filters; callers pass in the units in use. Knows no tenants and no decisions.
"""
