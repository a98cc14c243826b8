"""`headstock bench kernels`: attention backends on equal shapes and data, interleaved, against the machine's limits."""
