"""BLAKE3 of many short keys at once (O'Connor, Aumasson, Neves, Wilcox-O'Hearn: BLAKE3, 2020, sections 2.1 to 2.4).

Notation
    K   keys; each is at most one chunk, which is ``CHUNK_BYTES`` long
    v   the compression function's state, 16 words of 32 bits for each key
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import U8

#: Longest key: longer inputs are trees of chunks.
CHUNK_BYTES = 1024

_BLOCK_BYTES = 64
_IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
_PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
#: State words that each of a round's mixings takes: columns, then diagonals.
_MIXINGS = [
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
]  # fmt: skip
_ROUNDS = 7
_CHUNK_START, _CHUNK_END, _ROOT = 1, 2, 8


def first_words(keys: Sequence[bytes]) -> U8:
    """The first 8 bytes of each key's hash, as a little-endian integer.

    Returns:
        uint64, shape (K,).

    Raises:
        ValueError: a key is longer than ``CHUNK_BYTES``.
    """
    longest = max((len(key) for key in keys), default=0)
    if longest > CHUNK_BYTES:
        raise ValueError(f"a key has {longest} bytes; expected at most {CHUNK_BYTES}")
    blocks = max(-(-longest // _BLOCK_BYTES), 1)
    padded = b"".join(key.ljust(blocks * _BLOCK_BYTES, b"\0") for key in keys)
    words = np.frombuffer(padded, "<u4").reshape(len(keys), blocks, 16)
    lengths = np.array([len(key) for key in keys], np.int64)
    last = np.maximum(-(-lengths // _BLOCK_BYTES), 1) - 1
    chaining = np.broadcast_to(_IV[:, None], (8, len(keys))).copy()
    for block in range(blocks):
        live = last >= block
        ends = (last == block)[live]
        flags = np.where(ends, _CHUNK_END | _ROOT, 0) | (_CHUNK_START if block == 0 else 0)
        length = np.where(ends, lengths[live] - block * _BLOCK_BYTES, _BLOCK_BYTES)
        chaining[:, live] = _compressed(chaining[:, live], words[live, block].T, length, flags)
    return np.asarray(chaining[0].astype(np.uint64) | (chaining[1].astype(np.uint64) << np.uint64(32)))


def _compressed(chaining: np.ndarray, words: np.ndarray, length: np.ndarray, flags: np.ndarray) -> np.ndarray:
    """The next chaining values, uint32 (8, K), of a block of 16 ``words`` (16, K), of ``length`` bytes."""
    counter = np.zeros((2, words.shape[1]), np.uint32)
    start = np.broadcast_to(_IV[:4, None], (4, words.shape[1]))
    v = np.concatenate([chaining, start, counter, length[None].astype(np.uint32), flags[None].astype(np.uint32)])
    for _ in range(_ROUNDS):
        for k, (a, b, c, d) in enumerate(_MIXINGS):
            for word, right_d, right_b in ((words[2 * k], 16, 12), (words[2 * k + 1], 8, 7)):
                v[a] += v[b] + word
                v[d] = _rotated(v[d] ^ v[a], right_d)
                v[c] += v[d]
                v[b] = _rotated(v[b] ^ v[c], right_b)
        words = words[_PERMUTATION]
    return np.asarray(v[:8] ^ v[8:])


def _rotated(words: np.ndarray, right: int) -> np.ndarray:
    return np.asarray((words >> np.uint32(right)) | (words << np.uint32(32 - right)))
