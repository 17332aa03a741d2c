"""Tests of loading: checkpoints, tokenizers, configurations, and the bundled models."""
