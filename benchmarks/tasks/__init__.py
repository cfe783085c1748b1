"""Scorings per second of each task, how the maths scorer judges human-style answers, and
what the code scorer withstands."""
