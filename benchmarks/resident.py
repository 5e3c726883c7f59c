"""Memory of this process as the system sees it."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path


def resident_bytes() -> int:
    """Return the private memory of this process that is in RAM; files that it maps are left out.

    What the allocator keeps but nobody uses is given back to the system first: it would hide growth, or pretend some.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    status = Path("/proc/self/status").read_text()
    kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return 1024 * sum(map(int, kilobytes))


def touch_memory(size: int) -> None:
    """Take memory, write to all of it, give it back: what the host took away is then at hand for what follows.

    In huge pages, as NumPy takes its large arrays: of small pages the kernel would find others, not those just freed.
    """
    with mmap.mmap(-1, size + (1 << 22), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1
