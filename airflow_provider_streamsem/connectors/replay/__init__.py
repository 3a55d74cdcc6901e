"""The replay source: the files of a directory that does not change, one after another, for demonstrations and tests."""
