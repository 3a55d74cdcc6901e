"""The JDBC source and sink: read and write tables of SQL databases."""
