"""Other people's kernels, each in an environment of its own: scripts that are run by path, not imported."""
