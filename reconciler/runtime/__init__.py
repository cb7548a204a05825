"""One running replica: loop, leader election, certificates, health, and the process around them.

Owns lifetimes and time. Puts core, journal and cluster together; only `serve` also knows the webhooks.
"""
