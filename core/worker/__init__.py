"""Does what the scheduler decided: states, block tables, inputs, attention groups, and the runner that orders them."""
