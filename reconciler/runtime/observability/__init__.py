"""Observability: metrics, logs and Kubernetes Events (N4, C13)."""
