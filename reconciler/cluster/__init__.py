"""API server access: the port, its implementations, informers and the writer.

Data enters here (`informers`) and leaves here (`writer`). Owns the protocol; knows object shapes but decides nothing.
`kube` is the port on a real server, `memory` the port on one in this process.
"""
