"""``dataclass`` for frozen classes with slots: as in the standard library, but fast to define.

A start without a memo defines a hundred such classes. The standard decorator compiles five
functions from text for each class, which takes a quarter of the CPU of all imports. Here nothing is
compiled. ``fields``, ``replace`` and ``asdict`` of the standard library work as usual. A class made
here is not a base of a frozen class of the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from operator import attrgetter

    def dataclass(*, frozen, slots, kw_only=False):
        assert frozen
        assert slots

        def decorate(cls):
            # Without a text of its own, the standard decorator computes one, which takes long.
            cls.__doc__ = cls.__doc__ or cls.__name__
            made = dataclasses.dataclass(
                init=False, repr=False, eq=False, slots=True, kw_only=kw_only
            )(cls)
            for function in _functions(made):
                if function.__name__ not in cls.__dict__:
                    function.__qualname__ = f"{made.__qualname__}.{function.__name__}"
                    setattr(made, function.__name__, function)
            return made

        return decorate

    def _functions(cls):
        fields = dataclasses.fields(cls)
        names = frozenset(field.name for field in fields)
        positional = [field.name for field in fields if not field.kw_only]
        missing = dataclasses.MISSING
        defaults = {field.name: field.default for field in fields if field.default is not missing}
        factories = [
            (field.name, field.default_factory)
            for field in fields
            if field.default_factory is not missing
        ]
        checked = hasattr(cls, "__post_init__")
        compared = attrgetter(*(field.name for field in fields if field.compare))
        set_field = object.__setattr__

        def __init__(self, *arguments, **values):  # noqa: N807
            if arguments:
                named = dict(zip(positional, arguments, strict=False))
                if len(named) < len(arguments) or named.keys() & values.keys():
                    raise TypeError(f"{cls.__qualname__}: too many arguments")
                values |= named
            for name, factory in factories:
                if name not in values:
                    values[name] = factory()
            values = defaults | values
            if values.keys() != names:
                wrong = ", ".join(sorted(values.keys() ^ names))
                raise TypeError(f"{cls.__qualname__}: missing or unknown: {wrong}")
            for name, value in values.items():
                set_field(self, name, value)
            if checked:
                self.__post_init__()

        def __repr__(self):  # noqa: N807
            shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields)
            return f"{type(self).__qualname__}({', '.join(shown)})"

        def __eq__(self, other):  # noqa: N807
            if other.__class__ is not self.__class__:
                return NotImplemented
            return compared(self) == compared(other)

        def __hash__(self):  # noqa: N807
            return hash(compared(self))

        def __setattr__(self, name, value):  # noqa: N807
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name):  # noqa: N807
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

        def __getstate__(self):  # noqa: N807
            return [getattr(self, field.name) for field in fields]

        def __setstate__(self, state):  # noqa: N807
            for field, value in zip(fields, state, strict=True):
                set_field(self, field.name, value)

        return (
            __init__, __repr__, __eq__, __hash__, __setattr__, __delattr__, __getstate__,
            __setstate__,
        )  # fmt: skip
