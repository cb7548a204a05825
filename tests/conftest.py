"""Fixtures that several suites share."""

import freezegun

pytest_plugins = ["tests.realserver.fixtures"]

# Freezing looks at every attribute of every loaded module: the client's models are imported on first use and would be
# built around the frozen clock, and pytest's own durations would be nonsense.
freezegun.configure(extend_ignore_list=["kubernetes", "pydantic", "_pytest", "pytest_asyncio"])
