"""The node agent: reads sysfs, evaluates it, and reports it as the node's GPUNode (N5)."""
