"""The OpenAI-compatible server. Needs the extra `server`; nothing here is imported before `headstock serve` runs."""
