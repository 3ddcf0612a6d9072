"""Operators beyond the chip's own kernels: decompositions and kernel libraries."""
