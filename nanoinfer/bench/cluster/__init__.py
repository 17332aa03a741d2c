"""`bench cluster`: routing policies on a real cluster, on Ray Serve: hits, times and throughput of the same traffic."""
