"""Load for environment servers, and measurements of latency, capacity and CPU cost.

These modules return data or write files; `openenv.cli` prints.
"""
