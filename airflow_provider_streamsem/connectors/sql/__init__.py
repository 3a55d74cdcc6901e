"""The JDBC sink: writes rows to tables of SQL databases."""
