"""Code that the sources of table formats share: the source, its planner, the sizes of batches, checks of planned files, and reads of Parquet files."""
