"""Server of the logbook."""
