"""Libraries that move objects from and to memory."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.peers.base import (
    REGION,
    WAIT_S_MAX,
    Go,
    MemoryFile,
    Task,
    in_threads,
    payload,
    ranges,
    touched,
)

_KEYS: Final = {"access_key_id": "test", "secret_access_key": "test"}


def _obstore(task: Task, *, unsigned: bool) -> Any:  # noqa: ANN401
    from obstore.store import S3Store

    options = {"unsigned_payload": True} if unsigned else {}
    return S3Store(
        task.bucket,
        endpoint=task.endpoint,
        region=REGION,
        client_options={"allow_http": True},
        virtual_hosted_style_request=False,
        **_KEYS,
        **options,
    )


def obstore_upload(*, unsigned: bool) -> Callable[[Task], Any]:
    @contextmanager
    def upload(task: Task) -> Iterator[Go]:
        import obstore

        store, data = _obstore(task, unsigned=unsigned), payload(task.size_bytes)

        def go(key: str, size_bytes: int) -> None:
            obstore.put(
                store,
                key,
                data[:size_bytes],
                use_multipart=True,
                chunk_size=task.part_size_bytes,
                max_concurrency=task.in_flight,
            )

        yield go

    return upload


@contextmanager
def obstore_download(task: Task) -> Iterator[Go]:
    import obstore

    store, target = _obstore(task, unsigned=False), touched(task.size_bytes)

    def go(key: str, size_bytes: int) -> None:
        def get(part: tuple[int, tuple[int, int]]) -> None:
            _, (start, stop) = part
            target[start:stop] = memoryview(obstore.get_range(store, key, start=start, end=stop))

        in_threads(get, size_bytes, task)

    yield go


@contextmanager
def _crt(task: Task) -> Iterator[Callable[..., None]]:
    from awscrt import auth, http, s3

    host = urlsplit(task.endpoint).netloc
    provider = auth.AwsCredentialsProvider.new_static("test", "test")
    client = s3.S3Client(
        region=REGION,
        tls_mode=s3.S3RequestTlsMode.DISABLED,
        credential_provider=provider,
        part_size=task.part_size_bytes,
        throughput_target_gbps=10,
    )

    def request(kind: str, key: str, size_bytes: int, **options: Any) -> None:  # noqa: ANN401
        headers = http.HttpHeaders([("host", host), ("content-length", str(size_bytes))])
        path = f"/{task.bucket}/{key}"
        body = options.pop("body", None)
        call = http.HttpRequest("PUT" if body else "GET", path, headers, body)
        if not body:
            headers.remove("content-length")
        sent = client.make_request(type=s3.S3RequestType[kind], request=call, **options)
        sent.finished_future.result(WAIT_S_MAX)

    yield request


@contextmanager
def crt_upload(task: Task) -> Iterator[Go]:
    data = payload(task.size_bytes)
    with _crt(task) as request:
        yield lambda key, size_bytes: request(
            "PUT_OBJECT", key, size_bytes, body=MemoryFile(data[:size_bytes])
        )


@contextmanager
def crt_download(task: Task) -> Iterator[Go]:
    target = touched(task.size_bytes)

    def received(chunk: bytes, offset: int, **_: object) -> None:
        target[offset : offset + len(chunk)] = chunk

    with _crt(task) as request:
        yield lambda key, size_bytes: request("GET_OBJECT", key, size_bytes, on_body=received)


def _transfer_config(task: Task) -> Any:  # noqa: ANN401
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_chunksize=task.part_size_bytes, max_concurrency=task.in_flight)


def _boto3(task: Task) -> Any:  # noqa: ANN401
    import boto3

    return boto3.client("s3", endpoint_url=task.endpoint, region_name=REGION)


@contextmanager
def boto3_upload(task: Task) -> Iterator[Go]:
    client, data, config = _boto3(task), payload(task.size_bytes), _transfer_config(task)
    yield lambda key, size_bytes: client.upload_fileobj(
        MemoryFile(data[:size_bytes]), task.bucket, key, Config=config
    )


@contextmanager
def boto3_download(task: Task) -> Iterator[Go]:
    client, config = _boto3(task), _transfer_config(task)
    yield lambda key, size_bytes: client.download_fileobj(
        task.bucket, key, io.BytesIO(), Config=config
    )


@contextmanager
def _aiobotocore(task: Task) -> Iterator[tuple[asyncio.Runner, Any]]:
    from aiobotocore.session import get_session

    with asyncio.Runner() as runner:
        opening = get_session().create_client("s3", endpoint_url=task.endpoint, region_name=REGION)
        client = runner.run(opening.__aenter__())
        try:
            yield runner, client
        finally:
            runner.run(opening.__aexit__(None, None, None))


@contextmanager
def aiobotocore_upload(task: Task) -> Iterator[Go]:
    data = payload(task.size_bytes)
    with _aiobotocore(task) as (runner, client):

        async def put(key: str, size_bytes: int) -> None:
            at = {"Bucket": task.bucket, "Key": key}
            upload = {**at, "UploadId": (await client.create_multipart_upload(**at))["UploadId"]}
            places = asyncio.Semaphore(task.in_flight)

            async def part(number: int, start: int, stop: int) -> dict[str, object]:
                async with places:
                    body = bytes(data[start:stop])
                    sent = await client.upload_part(PartNumber=number, Body=body, **upload)
                return {"PartNumber": number, "ETag": sent["ETag"]}

            cut = enumerate(ranges(size_bytes, task.part_size_bytes), start=1)
            parts = await asyncio.gather(*(part(number, *piece) for number, piece in cut))
            await client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **upload)

        yield lambda key, size_bytes: runner.run(put(key, size_bytes))


@contextmanager
def aiobotocore_download(task: Task) -> Iterator[Go]:
    target = touched(task.size_bytes)
    with _aiobotocore(task) as (runner, client):

        async def get(key: str, size_bytes: int) -> None:
            places = asyncio.Semaphore(task.in_flight)

            async def part(start: int, stop: int) -> None:
                async with places:
                    wanted = f"bytes={start}-{stop - 1}"
                    answer = await client.get_object(Bucket=task.bucket, Key=key, Range=wanted)
                    async with answer["Body"] as body:
                        target[start:stop] = await body.read()

            cut = ranges(size_bytes, task.part_size_bytes)
            await asyncio.gather(*(part(*piece) for piece in cut))

        yield lambda key, size_bytes: runner.run(get(key, size_bytes))


def _s3fs(task: Task) -> Any:  # noqa: ANN401
    import s3fs

    return s3fs.S3FileSystem(endpoint_url=task.endpoint, key="test", secret="test")


@contextmanager
def s3fs_upload(task: Task) -> Iterator[Go]:
    files, data = _s3fs(task), bytes(payload(task.size_bytes))
    warm_up = data[: task.warm_up_bytes]
    yield lambda key, size_bytes: files.pipe_file(
        f"{task.bucket}/{key}",
        data if size_bytes == task.size_bytes else warm_up,
        chunksize=task.part_size_bytes,
        max_concurrency=task.in_flight,
    )


@contextmanager
def s3fs_download(task: Task) -> Iterator[Go]:
    files, target = _s3fs(task), touched(task.size_bytes)

    def go(key: str, size_bytes: int) -> None:
        cut = ranges(size_bytes, task.part_size_bytes)
        for first in range(0, len(cut), task.in_flight):
            group = cut[first : first + task.in_flight]
            found = files.cat_ranges(
                [f"{task.bucket}/{key}"] * len(group),
                [start for start, _ in group],
                [stop for _, stop in group],
            )
            for (start, stop), data in zip(group, found, strict=True):
                target[start:stop] = data

    yield go
