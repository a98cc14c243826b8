"""The engine and the contract. Imports nothing outside `core/`."""
