"""`headstock ab`: two kernels or more, held against each other, and a verdict no stronger than the measurements."""
