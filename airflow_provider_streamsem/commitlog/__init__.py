"""The commit log on a store: the loop that sends the requests of the protocol to the store, moves of a log, and probes of a store (doctor)."""
