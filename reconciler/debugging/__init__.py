"""Debugging tools: replay, verify, explain, plans and the HTML report (J7).

Read-only: never writes to a journal or a cluster.
"""
