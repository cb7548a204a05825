"""The whole product on embedded parts: an in-memory cluster, replicas with webhooks, virtual time.

Owns the assembly for `gpu-binder demo`, the scenarios and the simulation. No other package imports it.
"""
