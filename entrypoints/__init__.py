"""The composition root: where engine, selector and plugins are put together for a user."""
