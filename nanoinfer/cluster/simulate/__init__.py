"""What a cluster would do: a discrete-event simulation of replicas, routers and users (`python -m nanoinfer simulate`)."""
