"""The command line, one module per group of commands.

Owns flags, exit codes and tables; the work is done in the rooms it calls. No room but `main` imports it.
"""
