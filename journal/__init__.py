"""The append-only journal: event kinds, the store's contract, its SQLite and in-memory implementations (J1, J6).

Owns the file. Knows nothing of what the events mean; imports nothing else of the product.
"""
