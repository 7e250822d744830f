"""`python -m linkbound.cli`."""

from linkbound.cli.main import main

main()
