"""The commit log protocol of ``docs/PROTOCOL.md``, without I/O: this package uses no clock, no random numbers, no network and no threads."""
