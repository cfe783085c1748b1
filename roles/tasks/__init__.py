"""Tasks: the prompts for the policy, and how an answer is scored."""

from roles.tasks.mixture import load_tasks
from roles.tasks.registry import TASK_NAMES, load_task
from roles.tasks.task import Task, TaskError, Undecided

__all__ = ["TASK_NAMES", "Task", "TaskError", "Undecided", "load_task", "load_tasks"]
