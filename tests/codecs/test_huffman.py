"""Huffman codes: none too long, no code begins another one, and what is frequent is short."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_extra_buffers.codecs import huffman

repeatable = settings(max_examples=60)


def assert_decodes(lengths: np.ndarray, longest: int = huffman.LONGEST) -> None:
    """Each code, followed by anything, is found in the table."""
    codes, table = huffman.codes(lengths, longest), huffman.decoding_table(lengths, longest)
    assert table.shape == (1 << longest,)
    used = np.zeros(len(table), bool)
    for symbol in np.flatnonzero(lengths):
        free = longest - int(lengths[symbol])
        ahead = (int(codes[symbol]) << free) + np.arange(1 << free)
        assert (table[ahead] == symbol << 4 | lengths[symbol]).all()
        assert not used[ahead].any()
        used[ahead] = True
    assert not table[~used].any()


@repeatable
@given(st.dictionaries(st.integers(0, 255), st.integers(1, 10**9), max_size=256))
def test_any_counts_make_a_code(counts):
    counted = np.zeros(256, np.int64)
    counted[list(counts)] = list(counts.values())
    lengths = huffman.code_lengths(counted)
    assert lengths.shape == (257,)
    assert lengths.max() <= huffman.LONGEST
    assert np.array_equal(np.flatnonzero(lengths), [*np.flatnonzero(counted), huffman.ESCAPE])
    assert_decodes(lengths)


@pytest.mark.parametrize("longest", [huffman.LONGEST, 8, 3])
@pytest.mark.parametrize("counts", [2 ** np.arange(60), np.arange(1, 257) ** 7, np.full(256, 1), np.full(256, 10**15)])
def test_lengths_are_limited(counts, longest):
    counted = np.zeros(256, np.int64)
    counted[: len(counts)] = counts
    before = counted.copy()
    lengths = huffman.code_lengths(counted, longest)
    assert np.array_equal(counted, before)
    assert 0 < lengths.max() <= longest
    assert lengths[huffman.ESCAPE]
    assert_decodes(lengths, longest)


def test_codes_are_near_the_entropy():
    counts = (10_000 * 0.9 ** np.arange(256)).astype(np.int64)
    share = counts[counts > 0] / counts.sum()
    bits = (counts * huffman.code_lengths(counts)[:256]).sum() / counts.sum()
    assert bits < 1.03 * -(share * np.log2(share)).sum()


def test_the_flat_code_is_the_byte_itself():
    lengths = huffman.flat_lengths()
    assert np.array_equal(huffman.codes(lengths)[:256], np.arange(256))
    assert_decodes(lengths)


def test_codes_stay_what_they_are():
    """Stored payloads depend on it: codes follow from their lengths."""
    lengths = np.zeros(257, np.uint8)
    lengths[[3, 7, 200, 255, 256]] = 2, 1, 4, 4, 3
    assert huffman.codes(lengths)[[3, 7, 200, 255, 256]].tolist() == [0b10, 0b0, 0b1110, 0b1111, 0b110]
