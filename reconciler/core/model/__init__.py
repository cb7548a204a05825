"""Kubernetes objects as far as the product reads them: structs, decoders, and every name shared with the cluster.

Owns the stored and watched shapes. Knows no placement state; every other room builds on this one.
"""
