"""Measurements of whole engines: throughput and latency of a model, with several attention backends side by side."""
