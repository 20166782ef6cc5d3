"""Demo, reports and comparisons of `openenv bench`, and the measurement of sandboxes: what needs a checkout."""
