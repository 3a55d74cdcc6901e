"""Sources: where records come from. One file each; :mod:`contract` says what a source must keep."""
