"""Fuzzing from real samples: what arrives from outside is answered, refused or set aside, never more than that.

`python -m tests.fuzz --minutes N [--seed S] [--target NAME]` runs the targets in turn for that long.
"""
