"""Model families, one and all, against transformers."""
