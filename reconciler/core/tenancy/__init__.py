"""The tenant tree, the budgets its releases set, and what is charged against them (R2-R4).

Owns which tenant is charged for what. Knows no nodes and no placements.
"""
