"""The node agent: sysfs read, judged, and reported as the node's GPUNode (N5)."""
