"""Tasks: what is asked of the policy and how an answer is scored."""

from roles.tasks.registry import TASK_NAMES, load_task
from roles.tasks.task import Task, TaskError

__all__ = ["TASK_NAMES", "Task", "TaskError", "load_task"]
