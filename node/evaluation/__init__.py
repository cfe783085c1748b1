"""How good a checkpoint is at a task: sampling it, and what can be said of the outcome."""
