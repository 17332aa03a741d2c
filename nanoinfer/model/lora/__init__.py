"""Adapters: small additions to a model's projections, of low rank, one set per fine-tune (Hu et al., 2021: LoRA)."""
