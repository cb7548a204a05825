"""The placement state: the folded objects, their indexes, the work queue and pending writes.

Owns what is known and what is left to decide. Decides nothing itself: that is `admission` and `upkeep`.
"""
