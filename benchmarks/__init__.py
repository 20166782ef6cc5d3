"""Commands of `openenv bench` that need a checkout: demo, reports, comparisons, and the measurement of sandboxes."""
