"""Orders and starts: every refusal, the choice of a node, and the answers to bind requests (P1-P3, B2).

Owns the judgement; webhooks, binder, catalog and plan all ask here. Neighbours: `state` below, `upkeep` above.
"""
