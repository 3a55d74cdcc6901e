"""The commit log over a store: the loop that performs requests, maintenance, and the doctor."""
