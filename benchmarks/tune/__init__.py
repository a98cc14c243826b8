"""`headstock tune`: measure the backends of this machine for a model, and let the selector use what was found."""
