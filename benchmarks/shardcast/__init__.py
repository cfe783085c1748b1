"""Time of a checkpoint from the publish call to the last client: see `__main__`."""
