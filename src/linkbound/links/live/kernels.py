"""Our kernels as machine code: compiled by NVRTC when first needed, then kept in the user's cache.

One source per theme lies in `links/kernels`; those named together become one module.
"""

import ctypes
import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from linkbound.errors import LinkboundError, MissingExtra

COPIES = ("copy.cu", "pattern.cu", "latency.cu")
"""What the workers of copies launch."""
FOLDER = Path(__file__).parent.parent / "kernels"
_OPTIONS = ("--std=c++17", "-default-device", "--fmad=true")


class KernelError(LinkboundError):
    """A kernel of ours does not compile for this GPU."""


def source_text(names: Sequence[str]) -> str:
    """The named sources as one, in this order."""
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def machine_code(architecture: str, names: Sequence[str] = COPIES) -> bytes:
    """The named sources for `architecture` (`sm_90`). Raises MissingExtra, KernelError."""
    nvrtc = _nvrtc()
    version = _checked(nvrtc, "nvrtcVersion")
    source = source_text(names)
    name = hashlib.sha256(repr((source, architecture, _OPTIONS, version)).encode()).hexdigest()
    return _kept(name, lambda: compiled(nvrtc, source, architecture))


def compiled(nvrtc: Any, source: str, architecture: str) -> bytes:
    """Machine code of `source` from NVRTC. Raises KernelError with the compiler's words."""
    (program,) = _checked(nvrtc, "nvrtcCreateProgram", source.encode(), b"linkbound.cu", 0, [], [])
    options = [option.encode() for option in (*_OPTIONS, f"--gpu-architecture={architecture}")]
    try:
        _checked(nvrtc, "nvrtcCompileProgram", program, len(options), options)
    except KernelError as error:
        (size,) = _checked(nvrtc, "nvrtcGetProgramLogSize", program)
        log = bytes(size)
        _checked(nvrtc, "nvrtcGetProgramLog", program, log)
        said = log.rstrip(b"\0\n").decode(errors="replace")
        raise KernelError(
            f"{error.seen} {said[-600:]}",
            why=f"Nothing can be measured by kernels on {architecture}.",
            hint="Install another nvidia-cuda-nvrtc, or leave SM methods out with --methods.",
        ) from None
    (size,) = _checked(nvrtc, "nvrtcGetCUBINSize", program)
    code = bytes(size)
    _checked(nvrtc, "nvrtcGetCUBIN", program, code)
    return code


def _nvrtc() -> Any:
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")
    try:
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise MissingExtra(
            f"NVRTC cannot be loaded ({str(error).splitlines()[0]}).",
            why="Kernels are compiled for the GPU that is here.",
            hint="Install the extra: pip install 'linkbound[gpu]'.",
        ) from error
    return nvrtc


def _checked(nvrtc: Any, function: str, *arguments: Any) -> tuple[Any, ...]:
    code, *values = getattr(nvrtc, function)(*arguments)
    if int(code) != 0:
        raise KernelError(f"{function}: {getattr(code, 'name', code)}.")
    return tuple(values)


def _kept(name: str, make: Callable[[], bytes]) -> bytes:
    """From the cache, else made and kept there where it can be written."""
    path = cache_folder() / f"{name}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        code = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_bytes(code)
        partial.replace(path)
    except OSError:
        # A read-only home costs half a second a child, nothing else.
        return code
    return code


def cache_folder() -> Path:
    """Where machine code is kept: XDG_CACHE_HOME, else ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    return Path(base, "linkbound", "kernels")


def packed(arguments: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Arguments of a kernel as cuLaunchKernel takes them: all of ours are 64-bit."""
    return arguments, (ctypes.c_uint64,) * len(arguments)
