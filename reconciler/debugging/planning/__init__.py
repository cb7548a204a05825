"""What-if: a start, an order or the drain of a node, judged by the binder's own checks on a copy of the state."""
