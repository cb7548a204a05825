"""The journal as one self-contained HTML page, built along a single fold (J7)."""
