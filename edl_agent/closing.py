"""What is closed at the end of a ``with`` block."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that ends with `close`, whatever ended the block; an error goes on its way."""

    @abstractmethod
    def close(self) -> None:
        """End it. Idempotent: the client's `shutdown` closes too."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
