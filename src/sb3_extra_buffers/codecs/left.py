"""Codes of files that were written before there were `contexts`: they are read, by Python, and not written any more.

Each pixel is in a Huffman code that the one on its left chooses. A payload is

    sizes   uint32[3]  bytes of the first three parts, little-endian
    parts              four: rows 0, 4, 8 ..., rows 1, 5, 9 ... and so on, each row after the one before

Bits are filled from the highest of each byte; the rest of a part's last byte is 0. The first pixel of a part comes
after the most frequent byte. Symbols are not bytes, but how many bytes are more frequent. A set of codes is

    order    uint8[256]     bytes, the most frequent first
    lengths  uint8[n, 257]  of the codes (see `huffman`) after each of the n - 1 most frequent bytes, and after others
"""

from __future__ import annotations

import numpy as np

from sb3_extra_buffers.codecs import huffman
from sb3_extra_buffers.codecs.base import Bytes, CodecError, Ints

LONGEST = 8
"""Bits of a code."""

_HEAD = 12  # bytes of sizes
_MOST = 253  # bytes that have a code of their own for what follows them


class LeftCodes:
    """A set of such codes.

    Attributes:
        order: bytes, the most frequent first.
        tables: what the next bits are, after each of the most frequent bytes, and after others, `[n, 256]`.

    Raises:
        CodecError: the set is none.
    """

    def __init__(self, learned: bytes) -> None:
        data = np.frombuffer(learned, np.uint8)
        n, rest = divmod(data.size - 256, 257)
        if not 1 <= n <= _MOST + 1 or rest:
            raise CodecError(f"codes: {data.size} bytes are no set of codes")
        self.order, lengths = data[:256], data[256:].reshape(n, 257)
        taken = np.where(lengths, 1 << np.maximum(LONGEST - lengths.astype(np.int64), 0), 0).sum(axis=1)
        is_code = lengths.max() <= LONGEST and taken.max() <= 1 << LONGEST and lengths[:, huffman.ESCAPE].all()
        if not is_code or np.any(np.sort(self.order) != np.arange(256)):
            raise CodecError("codes: a set of codes is damaged")
        self.tables = np.array([huffman.decoding_table(one, LONGEST) for one in lengths])
        self.nbytes = self.tables.nbytes

    def decode(self, heap: Bytes, offsets: Ints, lengths: Ints, rows: Ints, width: int, out: Bytes) -> int:
        """Decode payloads into `out[rows]`. Returns the first that is damaged, or -1."""
        frame_bytes, own, tables = out.shape[1], len(self.tables) - 1, self.tables.tolist()
        for i, (start, length, row) in enumerate(zip(offsets.tolist(), lengths.tolist(), rows.tolist(), strict=True)):
            if start < 0 or not _HEAD <= length < frame_bytes or start > heap.size - length:
                return i
            payload = heap[start : start + length]
            ends = [_HEAD, *(_HEAD + payload[:_HEAD].copy().view("<u4").astype(np.int64).cumsum()).tolist(), length]
            if ends[3] > length:
                return i
            frame = out[row].reshape(-1, width)
            for part in range(4):
                bits = "".join(f"{byte:08b}" for byte in payload[ends[part] : ends[part + 1]].tolist())
                symbols: list[int] = []
                at, left = 0, 0
                for _ in range(frame[part::4].size):
                    symbol, taken = divmod(tables[left][int(bits[at : at + LONGEST].ljust(LONGEST, "0"), 2)], 16)
                    at += max(taken, 1)
                    if symbol == huffman.ESCAPE:
                        symbol, at = int(bits[at : at + 8].ljust(8, "0"), 2), at + 8
                    symbols.append(symbol)
                    left = min(symbol, own)
                if not 0 <= len(bits) - at < 8:
                    return i
                frame[part::4] = self.order[symbols].reshape(-1, width)
        return -1
