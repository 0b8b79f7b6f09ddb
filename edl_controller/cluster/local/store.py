"""Calls to etcd in the words of a cluster: what etcd's errors mean, and which of them may be repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from edl_agent import errors as agent_errors
from edl_controller import errors

CALL_DEADLINE = 10.0
"""Seconds that one call may take (the port allows 30)."""


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn the errors of the agent's etcd client into those of the port.

    Raises:
        Gone: the revision was compacted.
        Forbidden: no permission.
        Unavailable: no answer; a write may have been applied.
    """
    try:
        yield
    except agent_errors.WatchCompacted as error:
        raise errors.Gone(str(error)) from error
    except (agent_errors.PermissionDenied, agent_errors.AuthenticationFailed) as error:
        raise errors.Forbidden(str(error)) from error
    except agent_errors.RequestRefused as error:
        raise errors.Invalid(str(error)) from error
    except agent_errors.EdlAgentError as error:
        raise errors.Unavailable(str(error)) from error
