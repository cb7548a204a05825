"""The pure core: facts in, decisions out; no clock, no I/O.

The root owns the cycle: `fold` takes in a journal entry, `index_updates` says what an object's change touches,
`decide` pops the next work item and decides it, `snapshot` saves and restores the state. Rooms below it, each of
which imports only those named before it: `model`, `tenancy` and `capacity`, `metering`, `state`, `admission`, `upkeep`.
"""
