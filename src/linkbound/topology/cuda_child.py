"""Child process: what CUDA's driver says of every ordered pair of GPUs, as JSON on stdout (M2).

It loads libcuda by ctypes and makes no context. Run in a process of its own, because a process that
has initialised CUDA cannot fork safely.
"""

import ctypes
import json
import sys
from typing import Any

LIBRARY = "libcuda.so.1"
_BUS_ID_CHARS = 32
# cuda.h, CUdevice_P2PAttribute.
_ATTRIBUTES = {"performance_rank": 1, "access": 2, "native_atomics": 3}


def main() -> int:
    """Print the answers; exit 1 with a sentence on stderr where CUDA does not answer at all."""
    try:
        library: Any = ctypes.CDLL(LIBRARY)
    except OSError as error:
        sys.stderr.write(f"{LIBRARY} cannot be loaded ({error})\n")
        return 1
    code = library.cuInit(0)
    if code:
        sys.stderr.write(f"cuInit gave code {code}\n")
        return 1
    sys.stdout.write(json.dumps(_answers(library)))
    return 0


def _answers(library: Any) -> dict[str, Any]:
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        device = ctypes.c_int()
        if library.cuDeviceGet(ctypes.byref(device), ordinal) == 0:
            devices.append((ordinal, device.value))
    return {
        "bus_ids": {ordinal: _bus_id(library, device) for ordinal, device in devices},
        "pairs": [
            {"src": source[0], "dst": destination[0], **_pair(library, source[1], destination[1])}
            for source in devices
            for destination in devices
            if source != destination
        ],
    }


def _bus_id(library: Any, device: int) -> str | None:
    text = ctypes.create_string_buffer(_BUS_ID_CHARS)
    code = library.cuDeviceGetPCIBusId(text, _BUS_ID_CHARS, device)
    return None if code else text.value.decode("ascii", "replace")


def _pair(library: Any, source: int, destination: int) -> dict[str, int | None]:
    """Numbers as CUDA gives them; None where it gives an error instead."""
    answers: dict[str, int | None] = {}
    value = ctypes.c_int()
    for name, attribute in _ATTRIBUTES.items():
        code = library.cuDeviceGetP2PAttribute(ctypes.byref(value), attribute, source, destination)
        answers[name] = None if code else value.value
    return answers


if __name__ == "__main__":
    sys.exit(main())
