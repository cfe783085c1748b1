"""The protocol and its four actors: trainer, worker, validator, relay. Knows nothing of processes, files of configuration or command lines."""
