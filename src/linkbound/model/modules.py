"""Lists of modules that a quantisation leaves alone: names, globs and regular expressions.

Foreign patterns are bounded before they are compiled: a hostile one could match for ever (S3).
"""

import fnmatch
import re
from collections.abc import Iterable

from linkbound.errors import InputError
from linkbound.model.keys import shorten

# A foreign list can hold anything: past these sizes matching it would take minutes, not
# milliseconds. Real lists use a handful of globs and regular expressions of one or two stars.
GLOB_LIMIT = 64
REGEX_LIMIT = 32
REGEX_LENGTH_LIMIT = 256
REGEX_REPEAT_LIMIT = 3
_PREFIX = re.compile(r"^(?:(?:model|language_model|backbone|transformer)\.)+")
_RENAMED = {
    "block_sparse_moe": "mlp",
    "feed_forward": "mlp",
    "shared_expert": "shared_experts",
    "w1": "gate_proj",
    "w2": "down_proj",
    "w3": "up_proj",
}


class ModulePatterns:
    """A list of module names: exact, bare (`lm_head`), globs, `re:` regular expressions."""

    def __init__(self, entries: Iterable[object], source: str):
        self._exact: set[str] = set()
        self._bare: set[str] = set()
        self._starts: set[str] = set()
        self._globs: list[re.Pattern[str]] = []
        self._regexes: list[re.Pattern[str]] = []
        for entry in dict.fromkeys(_names(entries, source)):
            self._add(entry, source)

    def _add(self, entry: str, source: str) -> None:
        if entry.startswith("re:"):
            self._regexes.append(_compiled(entry[3:], source))
        elif "*" in entry or "?" in entry or "[" in entry:
            self._add_glob(canonical(entry))
        elif "." in entry:
            self._exact.add(canonical(entry))
        else:
            self._bare.add(_RENAMED.get(entry, entry))
        if len(self._globs) > GLOB_LIMIT or len(self._regexes) > REGEX_LIMIT:
            raise InputError(
                f"{source} lists more patterns of modules than {GLOB_LIMIT} globs or "
                f"{REGEX_LIMIT} regular expressions.",
                why="Real models name their modules, or use a handful of patterns.",
                hint="Check that this file belongs to the model.",
            )

    def _add_glob(self, entry: str) -> None:
        head = entry[:-1]
        if entry.endswith("*") and not any(sign in head for sign in "*?["):
            self._starts.add(head)
        else:
            self._globs.append(re.compile(fnmatch.translate(entry)))

    def match(self, module: str) -> bool:
        """Whether `module` ("layers.3.self_attn.q_proj"), or what it is a part of, is listed."""
        parts = module.split(".")
        if not self._bare.isdisjoint(parts):
            return True
        paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        if not self._exact.isdisjoint(paths):
            return True
        if self._starts and any(module[:end] in self._starts for end in range(len(module) + 1)):
            return True
        full = f"model.{module}"
        return any(glob.match(path) for glob in self._globs for path in paths) or any(
            regex.match(full) for regex in self._regexes
        )


def canonical(name: str) -> str:
    """A module's name without the wrapper's prefix, feed-forward parts named alike."""
    return ".".join(_RENAMED.get(part, part) for part in _PREFIX.sub("", name).split("."))


def _names(entries: Iterable[object], source: str) -> Iterable[str]:
    for entry in entries:
        if not isinstance(entry, str):
            raise InputError(
                f"{source} lists {shorten(entry)} among module names.",
                why="It is not known which weights it leaves unquantised.",
                hint="Correct the list in the file.",
            )
        yield entry


def _compiled(pattern: str, source: str) -> re.Pattern[str]:
    # Nested or many repeats take exponential time on a name that almost matches.
    repeats = len(re.findall(r"[*+{]", pattern))
    nested = re.search(r"\)[*+{?]", pattern) is not None
    if len(pattern) <= REGEX_LENGTH_LIMIT and repeats <= REGEX_REPEAT_LIMIT and not nested:
        try:
            return re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            pass
    raise InputError(
        f"{source} has the module pattern {shorten(pattern)}.",
        why="It is no regular expression, or one that could take for ever.",
        hint="Name the modules, or use a pattern with at most three repeats.",
    )
