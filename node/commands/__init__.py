"""One file per command: its flags, and what it prints."""
