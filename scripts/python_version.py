"""Says which Python is needed when this one is too old; runs on any Python 3.6 or newer."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (this script is what says so)
    found = ".".join(str(part) for part in sys.version_info[:2])
    sys.exit(
        f"linkbound needs Python 3.11 or newer; this is {found}. "
        "Name another one: make study PYTHON=python3.12"
    )
