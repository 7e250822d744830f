"""NVML's devices by UUID, each question by itself; a refusal keeps its reason (L1, P3)."""

from typing import Any

from linkbound.values import Value


class Refused(Value, frozen=True, kw_only=True):
    """NVML gave no answer: unlike None, which is an answer of some calls."""

    why: str


class NvmlDevices:
    """NVML through nvidia-ml-py, or whatever answers like it. It makes no CUDA context."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        started = self._call("nvmlInit")
        self.refused = started if isinstance(started, Refused) else None
        """Why NVML answers nothing at all; None where it does."""

    def uuids(self) -> tuple[str, ...]:
        """Of all GPUs, in the order of NVML's index; empty where nothing answers."""
        count = self._ask("nvmlDeviceGetCount")
        found = []
        for index in range(0 if isinstance(count, Refused) else count):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            uuid = handle
            if not isinstance(handle, Refused):
                uuid = self._ask("nvmlDeviceGetUUID", handle)
            if isinstance(uuid, Refused):
                continue
            text = uuid.decode("utf-8", "replace") if isinstance(uuid, bytes) else str(uuid)
            self._handles[text] = handle
            found.append(text)
        return tuple(found)

    def ask(self, uuid: str, function: str, *arguments: Any) -> Any:
        """The answer about one GPU, or Refused."""
        if uuid not in self._handles:
            self._handles[uuid] = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        handle = self._handles[uuid]
        return handle if isinstance(handle, Refused) else self._ask(function, handle, *arguments)

    def word_of(self, code: int) -> str:
        """NVML's own word for a return code."""
        word = self._call("nvmlErrorString", code)
        return f"return code {code}" if isinstance(word, Refused) else str(word)

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self.refused or self._call(function, *arguments)

    def _call(self, function: str, *arguments: Any) -> Any:
        call = getattr(self._nvml, function, None)
        if call is None:
            return Refused(why=f"{function} is not in this nvidia-ml-py")
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            return Refused(why=str(error))
