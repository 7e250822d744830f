"""`linkbound` and `python -m linkbound.cli`: Ctrl-C while modules load is no traceback."""

import sys


def main() -> None:
    """The console script."""
    try:
        from linkbound.cli.main import main as run_main
    except KeyboardInterrupt:
        # Nothing of ours is there yet to say it, and no study is open.
        sys.stderr.write("linkbound: Stopped. Nothing was recorded.\n")
        sys.exit(130)
    run_main()


if __name__ == "__main__":
    main()
