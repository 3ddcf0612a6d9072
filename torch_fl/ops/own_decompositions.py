"""Decompositions that PyTorch does not have, or has not in a form that eager mode can use.

Importing this registers them all; torch_fl.ops.decompositions does so when the first operator needs one.
"""

from __future__ import annotations

from torch_fl.ops.decomposed import (  # noqa: F401
    arithmetic,
    complex_numbers,
    factorizations,
    fourier,
    indexing,
    losses,
    normalization,
    pooling,
    resampling,
    special_functions,
    spectra,
    statistics,
)
