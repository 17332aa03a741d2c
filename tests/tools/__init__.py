"""Tests of what stands around the engine: command line, benchmarks, pictures, traces, README."""
