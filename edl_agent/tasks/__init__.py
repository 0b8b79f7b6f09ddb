"""Training tasks handed out under leases: the duty of the original's master, without a process that keeps state."""

from edl_agent.tasks.answers import Finished, Progress, Task
from edl_agent.tasks.queue import TaskQueue
from edl_agent.tasks.rules import Dataset, PassSummary

__all__ = ["Dataset", "Finished", "PassSummary", "Progress", "Task", "TaskQueue"]
