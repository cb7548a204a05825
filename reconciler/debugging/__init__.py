"""The journal and the cluster explained to people: replay, verify, explain, plans and the HTML report (J7).

Reads only; nothing in here writes to a journal or a cluster.
"""
