"""Import paths of existing code. Every name lives elsewhere in this package."""
