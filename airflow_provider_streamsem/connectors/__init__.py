"""Connectors read from and write to other systems. Each system has one package; other packages hold code that several systems share."""
