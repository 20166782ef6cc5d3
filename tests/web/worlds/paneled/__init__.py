"""An environment with a panel of its author's."""
