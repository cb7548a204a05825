"""The fields of Kubernetes objects that the product reads: structs, decoders, and every name shared with the cluster.

Owns the stored and watched types. Knows no placement state; every other package builds on this one.
"""
