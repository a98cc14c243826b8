"""`headstock bench serve`: load on any server with OpenAI's interface, and what its clients wait for."""
