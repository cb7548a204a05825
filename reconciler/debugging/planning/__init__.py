"""What-if plans for a start, an order or a node drain, using the binder's own checks on a copy of the state."""
