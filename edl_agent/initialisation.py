"""Which trainer initialises the parameters, once for the job; again when all pservers lost them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl_agent.client import EtcdClient


class Initialisation:
    """Being written."""

    def __init__(self, client: "EtcdClient") -> None:
        self._client = client
