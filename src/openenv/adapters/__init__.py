"""Other people's environments, served as ours: one module for each kind."""
