"""The protocol and its four actors: trainer, worker, validator, relay. Knows nothing of processes or command lines."""
