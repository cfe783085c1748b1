"""The registry contract: its Vyper source, and what the pinned compiler makes of it (`run_registry.json`)."""
