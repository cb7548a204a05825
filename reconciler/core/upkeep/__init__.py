"""Reactions to facts: fencing, releases, losses, returns, published status (P4-P6, O1, K4).

Owns unrequested decisions. Neighbour: `admission`, whose conditions and status writes it shares.
"""
