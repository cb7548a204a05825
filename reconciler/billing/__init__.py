"""Usage as bills: export and merging of several replicas' journals, statements, FOCUS, Parquet, prices (U3).

Reads journals only. Owns windows, formats and prices; `core.metering` computes the usage.
"""
