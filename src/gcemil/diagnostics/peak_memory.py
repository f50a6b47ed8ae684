"""The most memory that tensors made by a call hold at one moment.

Every operation is watched: a storage counts from the operation that returns it until it is freed. Tensors that exist
before the call do not count, nor do buffers inside one kernel. Against the allocator's own record (torch's profiler)
seven of the nine hosts agree to the byte; for the two with Nystrom attention this is 13 % low at 3,000 patches. Unlike
the resident size of a process it has no noise, so that ratios of small bags mean something.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def peak_bytes(call: Callable[[], object]) -> int:
    """Bytes of tensors that were alive at once while the call ran."""
    with LiveStorages() as watch:
        call()
    return watch.peak


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of storages that operations made and nobody has freed yet."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage.data_ptr() for storage in list_storages((args, kwargs))}
        for storage in list_storages(result):
            place, size = storage.data_ptr(), storage.nbytes()
            # A view shares the storage of what it was made from.
            if size and place not in given and place not in self._known:
                self._known[place] = size
                self._alive += size
                weakref.finalize(storage, self._freed, place)
        self.peak = max(self.peak, self._alive)
        return result

    def _freed(self, place: int) -> None:
        self._alive -= self._known.pop(place)


def list_storages(values: Any) -> list[torch.UntypedStorage]:
    """Of every dense tensor in a nested value; a sparse one is made of dense ones, seen when they were made."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    return [tensor.untyped_storage() for tensor in tensors if tensor.layout == torch.strided]
