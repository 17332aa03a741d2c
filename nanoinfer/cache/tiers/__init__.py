"""Tiers below the pool: where K/V goes that leaves the radix tree, and from where it comes back."""
