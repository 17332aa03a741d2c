"""A model split over several processes, each of which computes a share of every layer (tensor parallelism).

    Shoeybi et al., "Megatron-LM", 2019: cut the first of two matrices by columns and the second by rows, then add up.

                     x, the same in every rank
            ┌────────────────┴────────────────┐
    rank 0  │ q, k, v of half of the heads    │ rank 1: the other half          columns: each rank has its own outputs
            │ attention over its own K/V      │
            │ half of the inputs of o_proj    │                                 rows: each rank has a part of every sum
            └────────────────┬────────────────┘
                        all-reduce: x again

With weights in few bits, the second is cut by columns, too: all ranks gather its inputs and its outputs (`GatheredLinear`).

Rank 0 is the process of the `LLM`. It has the engine, and tells the other ranks what each pass computes; these have their
share of weights and K/V, and nothing else. Start reading with `shard.py`; then `layers.py`, `runner.py`, `worker.py`.

| file | |
|---|---|
| `shard.py` | which heads, columns and rows a rank has |
| `layers.py` | the layers that work together |
| `communicator.py` | what the ranks do together: broadcast, all-reduce, gather |
| `messages.py` | what rank 0 says: a pass, an adapter |
| `load.py`, `runner.py`, `ranks.py` | rank 0: loads its share, announces passes, starts and ends the others |
| `worker.py` | the other ranks |
| `rendezvous.py` | where processes find each other |
"""
