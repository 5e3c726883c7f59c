"""Old import path of `init_jit`; its home is `sb3_extra_buffers.compressed`."""

from sb3_extra_buffers.compressed.dtypes import init_jit

__all__ = ["init_jit"]
