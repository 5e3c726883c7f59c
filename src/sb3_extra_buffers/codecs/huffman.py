"""Huffman codes of bytes, none longer than `longest` bits: one look-up decodes one.

A code has 257 symbols: the bytes, and `ESCAPE` before a byte that it has no symbol for. It is told by its lengths
alone: codes of one length count upwards in the order of their symbols, shorter ones come first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ESCAPE = 256
LONGEST = 10

Lengths = NDArray[np.uint8]  # [..., 257], 0 where a symbol has no code
Codes = NDArray[np.uint16]


def flat_lengths() -> Lengths:
    """Return the code that is the byte itself."""
    return np.append(np.full(256, 8, np.uint8), np.uint8(0))


def code_lengths(counts: NDArray[np.int64], longest: int = LONGEST) -> Lengths:
    """Return the lengths of a code for bytes that occur so often.

    Args:
        counts: how often each byte occurs, `[256]`. Those that do not are escaped.
        longest: bits of a code, at most.
    """
    kept = counts.copy()
    kept[np.argsort(-kept, kind="stable")[(1 << longest) - 1 :]] = 0
    # What came once says how often new ones come.
    weights = np.append(kept, 1 + np.count_nonzero(counts == 1) + (counts - kept).sum())
    symbols = np.flatnonzero(weights)
    symbols = symbols[np.argsort(weights[symbols], kind="stable")]
    lengths = np.zeros(len(weights), np.uint8)
    sorted_weights = weights[symbols]
    while True:
        depths = _depths(sorted_weights.tolist())
        if max(depths) <= longest:
            lengths[symbols] = depths
            return lengths
        sorted_weights = sorted_weights // 2 + 1  # flatter: the longest codes get shorter


def _depths(weights: list[int]) -> list[int]:
    """Return how deep each leaf lies in the tree that joins the two lightest again and again; `weights` ascend."""
    n = len(weights)
    nodes, parents = weights.copy(), [0] * (2 * n - 1)
    leaf, inner = 0, n
    while len(nodes) < 2 * n - 1:
        total = 0
        for _ in range(2):  # inner nodes ascend, too: the lightest is the next of one of the two rows
            if inner >= len(nodes) or (leaf < n and weights[leaf] <= nodes[inner]):
                lightest, leaf = leaf, leaf + 1
            else:
                lightest, inner = inner, inner + 1
            parents[lightest] = len(nodes)
            total += nodes[lightest]
        nodes.append(total)
    depths = [0] * (2 * n - 1)
    for node in range(2 * n - 3, -1, -1):
        depths[node] = depths[parents[node]] + 1
    return [max(depth, 1) for depth in depths[:n]]  # a symbol alone has a bit, too


def _in_order(lengths: Lengths, longest: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the symbols that have codes, in the order of those, and how many entries of the table are each one's."""
    symbols = np.flatnonzero(lengths)
    symbols = symbols[np.argsort(lengths[symbols], kind="stable")]
    return symbols, 1 << (longest - lengths[symbols].astype(np.int64))


def codes(lengths: Lengths, longest: int = LONGEST) -> Codes:
    """Return the code of each symbol [257]: its `lengths` lowest bits, the highest of them first."""
    symbols, sizes = _in_order(lengths, longest)
    result = np.zeros(len(lengths), np.uint16)
    result[symbols] = (np.cumsum(sizes) - sizes) // sizes
    return result


def decoding_table(lengths: Lengths, longest: int = LONGEST) -> NDArray[np.uint16]:
    """Return `symbol << 4 | length` for any next `longest` bits, 0 where no code begins so."""
    symbols, sizes = _in_order(lengths, longest)
    entries = np.repeat(symbols << 4 | lengths[symbols], sizes)
    table = np.zeros(1 << longest, np.uint16)
    table[: len(entries)] = entries
    return table
