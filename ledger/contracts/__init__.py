"""The registry contract: its Vyper source, and the output of the pinned compiler (`run_registry.json`)."""
