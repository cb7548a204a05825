"""Who watches the loop: metrics, logs and the cluster's Events (N4, C13)."""
