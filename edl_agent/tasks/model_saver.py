"""Who saves the model: exactly one trainer is told, once per finished pass or once per interval."""

import random
import secrets

from edl_agent import errors
from edl_agent.clock import Clock
from edl_agent.etcd import kv as parts
from edl_agent.etcd.kv import Kv
from edl_agent.etcd.lease import Leases
from edl_agent.tasks.encoding import Saver, TaskKeys, decode_saver, decode_state, encode_saver


class ModelSaver:
    """Answers `TaskQueue.should_save_model`.

    Args:
        kv: the store.
        leases: for intervals: the server's clock measures them.
        keys: names.
        clock: for deadlines, and times for people.
        name: of the trainer.
        call_timeout: seconds per question.
    """

    def __init__(self, kv: Kv, leases: Leases, keys: TaskKeys, clock: Clock, name: str, call_timeout: float) -> None:
        self._kv = kv
        self._leases = leases
        self._keys = keys
        self._clock = clock
        self._name = name
        self._call_timeout = call_timeout

    def per_pass(self) -> bool:
        """Whether this caller, and no other, is to save the model of the last finished pass."""
        deadline = self._clock.monotonic() + self._call_timeout
        token = secrets.token_hex(8)
        while True:
            state = self._kv.get(self._keys.state, deadline)
            if state is None:
                return False
            finished = decode_state(state).current - 1
            pairs, _ = self._kv.range(self._keys.saver, b"", deadline)
            revision = 0
            if pairs:
                saver = decode_saver(pairs[0].value)
                if saver.pass_number >= finished:
                    return saver.token == token
                revision = pairs[0].mod_revision
            elif finished < 0:
                return False
            try:
                saved = encode_saver(Saver(finished, token, self._name, self._clock.wall()))
                if self._kv.txn(
                    [parts.modified_at(self._keys.saver, revision)],
                    [parts.put_op(self._keys.saver, saved)],
                    [],
                    deadline,
                ).succeeded:
                    return True
            except errors.UnknownOutcome:
                # Asked again with the same token: the first try has won, or can no longer win.
                if self._clock.monotonic() >= deadline:
                    raise

    def per_interval(self, seconds: float) -> bool:
        """Whether this caller is to save, and no other for so many seconds (whole ones, rounded up)."""
        deadline = self._clock.monotonic() + self._call_timeout
        if self._kv.get(self._keys.saving, deadline) is not None:
            return False
        token = secrets.token_hex(8)
        lease = random.SystemRandom().randrange(1, 2**62)
        self._leases.grant(lease, seconds, deadline)
        saved = encode_saver(Saver(-1, token, self._name, self._clock.wall()))
        while True:
            try:
                result = self._kv.txn(
                    [parts.absent(self._keys.saving)],
                    [parts.put_op(self._keys.saving, saved, lease)],
                    [parts.range_op(self._keys.saving)],
                    deadline,
                )
                break
            except errors.UnknownOutcome:
                if self._clock.monotonic() >= deadline:
                    raise
        if result.succeeded:
            return True
        found = result.ranges[0]
        if found and decode_saver(found[0].value).token == token:
            return True
        self._leases.revoke(lease, deadline)
        return False
