"""How good a checkpoint is at a task: sampling it, and statistics of the outcome."""
