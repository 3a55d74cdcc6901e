"""Source and sink for files on local disk or S3."""
