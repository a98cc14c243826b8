"""Doing what the scheduler decided: request states, block tables, inputs, attention groups, and the runner that puts them in order."""
