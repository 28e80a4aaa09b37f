"""Everybody who moves checkpoints, each behind the same small function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.peers import checkpointer, dcp, ours, programs, raw, sdks
from benchmarks.peers.base import Open, Peer


def _named(*peers: tuple[str, Open, Sequence[str]]) -> dict[str, Peer]:
    return {name: Peer(name, open_it, needs) for name, open_it, needs in peers}


PEERS: Final[Mapping[str, Mapping[str, Peer]]] = {
    "upload": _named(
        ("raw sockets", raw.upload, ()),
        ("ckptstore", ours.upload, ()),
        ("obstore", sdks.obstore_upload(unsigned=False), ["obstore"]),
        ("obstore, unsigned", sdks.obstore_upload(unsigned=True), ["obstore"]),
        ("AWS CRT", sdks.crt_upload, ["awscrt"]),
        ("boto3 TransferManager", sdks.boto3_upload, ["boto3"]),
        ("aiobotocore", sdks.aiobotocore_upload, ["aiobotocore"]),
        ("s3fs", sdks.s3fs_upload, ["s3fs"]),
        ("s5cmd", programs.s5cmd_upload, ["s5cmd"]),
        ("rclone", programs.rclone_upload, ["rclone"]),
    ),
    "download": _named(
        ("raw sockets", raw.download, ()),
        ("ckptstore", ours.download, ()),
        ("obstore", sdks.obstore_download, ["obstore"]),
        ("AWS CRT", sdks.crt_download, ["awscrt"]),
        ("boto3 TransferManager", sdks.boto3_download, ["boto3"]),
        ("aiobotocore", sdks.aiobotocore_download, ["aiobotocore"]),
        ("s3fs", sdks.s3fs_download, ["s3fs"]),
        ("s5cmd", programs.s5cmd_download, ["s5cmd"]),
        ("rclone", programs.rclone_download, ["rclone"]),
    ),
    "dcp save": _named(
        ("ckptstore", dcp.saver(dcp.our_writer), ["torch"]),
        ("s3torchconnector", dcp.saver(dcp.s3torch_writer), ["s3torchconnector"]),
        ("FsspecWriter", dcp.saver(dcp.fsspec_writer), ["s3fs", "torch"]),
        ("FileSystemWriter", dcp.saver(dcp.file_writer), ["torch"]),
    ),
    "dcp load": _named(
        ("ckptstore", dcp.loader(dcp.our_writer, dcp.our_reader), ["torch"]),
        (
            "s3torchconnector",
            dcp.loader(dcp.s3torch_writer, dcp.s3torch_reader),
            ["s3torchconnector"],
        ),
        ("FsspecReader", dcp.loader(dcp.fsspec_writer, dcp.fsspec_reader), ["s3fs", "torch"]),
        ("FileSystemReader", dcp.loader(dcp.file_writer, dcp.file_reader), ["torch"]),
    ),
    "background save": _named(
        ("memcpy", checkpointer.memcpy, ["torch"]),
        ("ckptstore", checkpointer.background_save, ["torch"]),
        ("ckptstore, first save", checkpointer.first_background_save, ["torch"]),
    ),
}
