"""The building blocks of the decoder."""
