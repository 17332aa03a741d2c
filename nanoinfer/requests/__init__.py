"""Requests: what callers ask for, the state of each request, and what callers get back."""
