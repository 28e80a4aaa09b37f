"""What the settings ask of every request, and of every new object. Pure."""

from __future__ import annotations

from ckptstore.settings import S3Settings

DIRECTORY_BUCKET = "--x-s3"


def of_requests(settings: S3Settings) -> dict[str, str]:
    """Return the parameters that every request carries."""
    return {"RequestPayer": "requester"} if settings.request_payer else {}


def of_objects(settings: S3Settings) -> dict[str, str | bool]:
    """Return the parameters that a new object is made with."""
    options: dict[str, str | bool] = {}
    sse = settings.sse or ("aws:kms" if settings.kms_key_id else None)
    if sse:
        options["ServerSideEncryption"] = sse
    if settings.kms_key_id:
        options["SSEKMSKeyId"] = settings.kms_key_id
    if sse == "aws:kms":  # The two-layer kind has no bucket keys.
        options["BucketKeyEnabled"] = settings.bucket_key
    if settings.storage_class:
        options["StorageClass"] = settings.storage_class
    return options


def is_directory_bucket(bucket: str) -> bool:
    """Tell whether this is a bucket of S3 Express One Zone: AWS keeps that ending for them.

    Such a bucket lists in no order, under whole directories only, and splits nothing by the
    first bytes of a key.
    """
    return bucket.endswith(DIRECTORY_BUCKET)
