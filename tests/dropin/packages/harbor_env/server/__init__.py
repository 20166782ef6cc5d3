"""Server of the harbor."""
