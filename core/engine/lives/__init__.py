"""Where an engine can live: in a thread, in a process of its own, in a Ray actor, several behind a router."""
