"""The one base of every value in the package: frozen, keyword-only, strict, and JSON both ways."""

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An immutable value. `msgspec.to_builtins` writes it, `msgspec.convert` reads it back."""
