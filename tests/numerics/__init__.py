"""Numerics: kernels, attention, weights and K/V in fewer bits, captured graphs; the same bits however work is cut."""
