"""The page at `/web`, in a browser, against servers that really run."""
