"""Drafts: several tokens from one pass. Drafters propose tokens, and one VERIFY pass checks them (see scheduler.py)."""
