"""The child of one job: starts a process for each rank, and ends all when one ends badly (P1).

Run as `python -m linkbound.profile.leader JOB FOLDER COUNT`. The ranks stay in this child's
process group, so that its parent's time limit ends them too.
"""

import signal
import subprocess
import sys
import time

POLL_S = 0.05


def main(arguments: list[str]) -> int:
    """Start the ranks and wait; returns 0, or the code of the first rank that failed."""
    job, folder, count = arguments[0], arguments[1], int(arguments[2])
    # The ranks get TERM too, say where they were and end: that is the end of this one as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    words = [sys.executable, "-m", "linkbound.profile.rank", job, folder]
    started = str(time.monotonic())
    ranks = [subprocess.Popen([*words, str(number), started]) for number in range(count)]
    code = _wait(ranks)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
    return code


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = [(number, code) for number, code in enumerate(codes) if code]
        if failed:
            number, code = failed[0]
            sys.stderr.write(f"linkbound: rank {number} ended with {code}\n")
            return code if 0 < code < 256 else 1
        if all(code == 0 for code in codes):
            return 0
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
