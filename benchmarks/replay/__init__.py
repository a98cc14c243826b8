"""`headstock replay`: recorded attention batches, computed again by another backend and checked."""
