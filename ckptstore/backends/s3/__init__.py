"""Amazon S3 and all that speaks its protocol."""
