"""The commit log on a store: the loop that performs requests, log moves, and the store probe (doctor)."""
