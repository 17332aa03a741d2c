"""Requests: what callers ask for, the state of each request, and the outputs that callers get back."""
