"""What compression brings on weights and optimizer state, and what it costs on one core.

python -m benchmarks.compression
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckptstore.packing import Numbers, block_widths, pack_block, unpack_block
from ckptstore.types import MIB

if TYPE_CHECKING:
    import torch

SIZE_BYTES = 64 * MIB
BLOCK_BYTES = 4 * MIB


def tensors() -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    torch.manual_seed(0)
    weights = 0.02 * torch.randn(SIZE_BYTES // 4)
    yield "weights, bfloat16", weights.repeat(2).to(torch.bfloat16)
    yield "weights, float32", weights
    yield "exp_avg_sq, float32", (1e-4 * torch.randn(SIZE_BYTES // 4)) ** 2
    yield "zeros, float32", torch.zeros(SIZE_BYTES // 4)


def row(name: str, tensor: torch.Tensor, *, width: int) -> str:
    import torch

    data = tensor.view(torch.uint8).numpy().data
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    (prevailing, *_) = block_widths([Numbers(0, len(data), width)], len(data), BLOCK_BYTES)
    began_s = time.process_time()
    stored = [memoryview(pack_block([block], prevailing, 1)) for block in blocks]
    packed_s = time.process_time() - began_s
    target = memoryview(bytearray(BLOCK_BYTES))
    began_s = time.process_time()
    for one in stored:
        unpack_block(one, prevailing, target)
    unpacked_s = time.process_time() - began_s
    assert target == blocks[-1]
    gib = len(data) / 1024**3
    ratio = len(data) / sum(map(len, stored))
    return (
        f"| {name} | {'yes' if width > 1 else 'no'} | {ratio:.2f} | {gib / packed_s:.2f} "
        f"| {gib / unpacked_s:.2f} |"
    )


def main() -> None:
    print("| data | sorted | smaller by | pack, GiB/s | unpack, GiB/s |")
    print("|---|---|---|---|---|")
    for name, tensor in tensors():
        for width in (1, tensor.element_size()):
            print(row(name, tensor, width=width))


if __name__ == "__main__":
    main()
