"""Stands where torch would in the child of a `device_map` split: tensors are shapes on devices.

What is pinned, and which stream waits for which, is counted in `COUNTS`.
"""

from types import SimpleNamespace

__version__ = "2.11.0"
bfloat16, int64 = "bfloat16", "int64"
_BYTES = {bfloat16: 2, int64: 8}
COUNTS = {"pinned": 0, "waits": 0}


class Device:
    def __init__(self, name):
        kind, _, index = ("cuda", "", name) if isinstance(name, int) else str(name).partition(":")
        self.type, self.index = kind, int(index or 0)

    def __eq__(self, other):
        return (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __str__(self):
        return f"{self.type}:{self.index}"


device = Device


class Tensor:
    def __init__(self, shape, dtype=bfloat16, where="cpu", values=None):
        self.shape, self.dtype, self.values = tuple(shape), dtype, values
        self.device = where if isinstance(where, Device) else Device(where)

    @property
    def nbytes(self):
        count = _BYTES[self.dtype]
        for one in self.shape:
            count *= one
        return count

    def to(self, where, **_how):
        return Tensor(self.shape, self.dtype, where, self.values)

    def copy_(self, other, **_how):
        assert self.shape == other.shape
        self.values = other.values

    def tolist(self):
        return self.values

    def __getitem__(self, index):
        return Tensor(self.shape[1:], self.dtype, self.device, self.values[index])


class Scores:
    def __init__(self, best):
        self.best = best

    def float(self):
        return self

    def topk(self, count):
        found = [self.best + number for number in range(count)]
        values = [self[one] for one in found]
        return Tensor((count,), values=values), Tensor((count,), values=found)

    def __getitem__(self, token):
        return -0.5 - (token - self.best)


def tensor(values, device):
    return Tensor((len(values), len(values[0])), int64, device, values)


def empty(shape, dtype, device="cpu", pin_memory=False):
    COUNTS["pinned"] += pin_memory
    return Tensor(shape, dtype, device)


def ones_like(other):
    return Tensor(other.shape, other.dtype, other.device, other.values)


def log_softmax(scores, _dim):
    return scores


def manual_seed(seed):
    assert seed == 1


def _stream(where):
    assert where.type == "cuda"

    def wait_stream(other):
        assert other.device != where
        COUNTS["waits"] += 1

    return SimpleNamespace(device=where, wait_stream=wait_stream)


cuda = SimpleNamespace(
    is_available=lambda: True, synchronize=lambda _device: None, current_stream=_stream
)
