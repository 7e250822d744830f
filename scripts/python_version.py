"""Says which Python is needed when this one is too old; runs on any Python 3."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  (this script is what says so)
    sys.exit(
        "linkbound needs Python 3.11 or newer; this is %d.%d. "
        "Name another one: make study PYTHON=python3.12" % sys.version_info[:2]
    )
