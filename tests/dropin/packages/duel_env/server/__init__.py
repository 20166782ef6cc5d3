"""Server of the duel."""
