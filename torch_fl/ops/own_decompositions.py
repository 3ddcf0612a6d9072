"""Decompositions that PyTorch does not have, or has not in a form that eager mode can use."""

from __future__ import annotations
