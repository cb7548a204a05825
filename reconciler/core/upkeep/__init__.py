"""What follows from facts rather than requests: fencing, releases, losses, returns, published status (P4-P6, O1, K4).

Owns decisions nobody asked for. Neighbour: `admission`, whose conditions and status writes it shares.
"""
