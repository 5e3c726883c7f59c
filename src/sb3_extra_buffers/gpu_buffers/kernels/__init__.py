"""Batched codecs on a Torch device: Triton kernels on CUDA, their torch references elsewhere."""

from sb3_extra_buffers.gpu_buffers.kernels.delta import delta_decode, delta_encode
from sb3_extra_buffers.gpu_buffers.kernels.payloads import Payloads, pack_entries
from sb3_extra_buffers.gpu_buffers.kernels.rle import rle_decode, rle_encode

__all__ = ["Payloads", "delta_decode", "delta_encode", "pack_entries", "rle_decode", "rle_encode"]
