"""The placement state: the folded objects, their indexes, the work queue and pending writes.

Owns what is known and what is left to decide. Judges nothing: refusals and answers belong to `admission` and `upkeep`.
"""
