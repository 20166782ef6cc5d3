"""Server of the snippets."""
