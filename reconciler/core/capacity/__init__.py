"""What nodes serve and can still give, and whether a set of units fits (R5-R8, P2, P3).

Owns arithmetic over units and node filters; callers pass in what is taken. Knows no tenants and no decisions.
"""
