"""Usage intervals: who had what, from when to when (U1, U1b, U2).

Owns the meter that every fold advances. Reads the placement state only through `state_view`; prices, windows and
file formats belong to `billing`.
"""
