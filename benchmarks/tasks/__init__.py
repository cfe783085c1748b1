"""Scorings a second of each task, how the maths scorer judges what people write, and what the code scorer withstands."""
