"""The journal as one page: gathered along one fold, drawn, and written as self-contained HTML (J7)."""
