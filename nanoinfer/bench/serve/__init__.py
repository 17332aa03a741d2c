"""`bench serve`: servers under load, seen from their clients."""
