"""A maze: the environment that the others of the corpus are variants of."""
