"""How long a checkpoint takes from the publish call to the last client: see `__main__`."""
