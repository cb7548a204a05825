"""What a replica shows of itself: metrics, logs and Kubernetes Events (N4, C13)."""
