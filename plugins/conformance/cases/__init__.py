"""The named cases, one module for what they are about."""
