"""Numerics: kernels, attention, weights and K/V in fewer bits, captured passes; the same bits however work is cut."""
