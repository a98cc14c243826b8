"""`headstock trace`: recordings to and from FlashInfer-Trace, the data sets of flashinfer-bench."""
