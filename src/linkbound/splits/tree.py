"""Questions about a machine's modules: which groups, pairs and states are alike (D4).

Answers are form numbers: equal for what an exchange of interchangeable GPUs makes equal.
"""

from collections.abc import Hashable, Iterator, Sequence

from linkbound.splits.modules import Module

FREE, USED = 0, 1
"""Marks of a GPU; higher ones are the caller's."""
Group = tuple[int, ...]
Marks = tuple[int, ...]


class Tree:
    """Modules of a machine of `n_gpus` GPUs, and the forms that were met."""

    def __init__(self, root: Module, n_gpus: int) -> None:
        self.root = root
        self.n_gpus = n_gpus
        self._numbers: dict[Hashable, int] = {}
        self._groups: dict[Group, int] = {}
        self._paths: dict[int, tuple[int, ...]] = {}
        self._kinds: dict[int, str] = {}
        self._walk(root, ())

    @property
    def size(self) -> int:
        """GPUs in the tree."""
        return len(self._paths)

    @property
    def free(self) -> Marks:
        """Marks while nothing runs: GPUs that are not in the tree are used."""
        return tuple(FREE if gpu in self._paths else USED for gpu in range(self.n_gpus))

    def kind(self, gpu: int) -> str:
        """What tells a GPU from others."""
        return self._kinds[gpu]

    def group_form(self, gpus: Group) -> int:
        """Which GPUs a group has and how they are joined, in no order."""
        key = tuple(sorted(gpus))
        if key not in self._groups:
            self._groups[key] = self._induced(self.root, frozenset(key))
        return self._groups[key]

    def pair_form(self, src: int, dst: int) -> int:
        """How `src` is joined to `dst`, with both kinds."""
        module, depth = self._meeting(src, dst)
        link = module.link(self._paths[src][depth], self._paths[dst][depth])
        return self._number(("pair", link, self._kinds[src], self._kinds[dst]))

    def state_form(self, marks: Marks) -> int:
        """The whole machine with these marks."""
        return self._marked(self.root, marks)

    def depth(self, one: int, other: int) -> int:
        """How many modules hold both GPUs: the more, the nearer they are."""
        return self._meeting(one, other)[1]

    def choices(self, size: int, marks: Marks) -> Iterator[Group]:
        """Free groups of `size` GPUs in the machine's order, one of those that are alike."""
        for found in self._choices(self.root, size, marks):
            yield tuple(sorted(found))

    def _walk(self, module: Module, path: tuple[int, ...]) -> None:
        if not module.children:
            self._paths[module.gpus[0]] = path
            self._kinds[module.gpus[0]] = module.kind
        for number, child in enumerate(module.children):
            self._walk(child, (*path, number))

    def _number(self, form: Hashable) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _meeting(self, one: int, other: int) -> tuple[Module, int]:
        """The smallest module that holds both GPUs, and its depth."""
        module, depth = self.root, 0
        for mine, theirs in zip(self._paths[one], self._paths[other], strict=False):
            if mine != theirs:
                break
            module, depth = module.children[mine], depth + 1
        return module, depth

    def _induced(self, module: Module, gpus: frozenset[int]) -> int:
        if not module.children:
            return self._number(("gpu", module.kind))
        parts = [
            (number, self._induced(child, gpus))
            for number, child in enumerate(module.children)
            if not gpus.isdisjoint(child.gpus)
        ]
        if len(parts) == 1:
            return parts[0][1]
        if module.alike:
            return self._number(("alike", module.link(0, 1), *sorted(form for _, form in parts)))
        return self._number(("unlike", module.gpus, *parts))

    def _marked(self, module: Module, marks: Marks) -> int:
        if not module.children:
            return self._number(("marked", module.kind, marks[module.gpus[0]]))
        forms = [self._marked(child, marks) for child in module.children]
        if module.alike:
            return self._number(("state", module.link(0, 1), *sorted(forms)))
        return self._number(("state of", module.gpus, *forms))

    def _choices(self, module: Module, size: int, marks: Marks) -> Iterator[Group]:
        if size == 0:
            yield ()
        elif not module.children:
            if size == 1 and marks[module.gpus[0]] == FREE:
                yield module.gpus
        else:
            yield from self._from_families(self._families(module, marks), size, marks)

    def _families(self, module: Module, marks: Marks) -> list[list[Module]]:
        """Children that may change places, families in the order of their forms.

        The order makes the choices inside two children of one form correspond, number by number.
        """
        if not module.alike:
            return [[child] for child in module.children]
        families: dict[int, list[Module]] = {}
        for child in module.children:
            families.setdefault(self._marked(child, marks), []).append(child)
        return [families[form] for form in sorted(families)]

    def _from_families(
        self, families: Sequence[list[Module]], size: int, marks: Marks
    ) -> Iterator[Group]:
        if not families:
            if size == 0:
                yield ()
            return
        room = sum(_free(child, marks) for child in families[0])
        for count in range(min(size, room), -1, -1):
            for rest in self._from_families(families[1:], size - count, marks):
                for found in self._from_family(families[0], count, marks, None):
                    yield (*found, *rest)

    def _from_family(
        self, family: Sequence[Module], size: int, marks: Marks, bound: tuple[int, int] | None
    ) -> Iterator[Group]:
        """Choices from children of one form: each takes no more than the one before it.

        `bound` is what that one took: how many, and which of the choices of so many.
        """
        if size == 0:
            yield ()
            return
        if not family:
            return
        most = min(size, _free(family[0], marks), size if bound is None else bound[0])
        for count in range(most, 0, -1):
            if count * len(family) < size:
                break
            for number, found in enumerate(self._choices(family[0], count, marks)):
                if bound is not None and count == bound[0] and number < bound[1]:
                    continue
                rest = self._from_family(family[1:], size - count, marks, (count, number))
                for more in rest:
                    yield (*found, *more)


def _free(module: Module, marks: Marks) -> int:
    return sum(marks[gpu] == FREE for gpu in module.gpus)
