"""Check a rule's regular expression before the engine sees it.

The rules are judged by Rust's ``regex``, whose time is linear in the text because it has no back-references
and no look-around. Python's ``re`` finds the plain mistakes; what only Python understands, or what the two
read differently, is refused here, so that a policy means one thing.
"""

from __future__ import annotations

_ENGINE = "the rule engine works in linear time and has no"
_GROUP_FLAGS = frozenset("imsx-")


class RegexError(ValueError):
    pass


def check_regex(pattern: str) -> None:
    _refuse_what_differs(pattern)
    # Imported here: a policy without rules never pays for it.
    import re
    import warnings

    try:
        with warnings.catch_warnings():
            # A FutureWarning marks "[[", "--", "&&" in a set: plain letters to Python, set operations to Rust.
            warnings.simplefilter("error")
            re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise RegexError(f"not a regular expression: {error}") from None
    except RecursionError:
        raise RegexError("the regular expression is nested too deeply") from None
    except Warning as warning:
        raise RegexError(f"the regular expression is ambiguous: {warning}") from None


def _refuse_what_differs(pattern: str) -> None:
    at = 0
    in_set = False
    while at < len(pattern):
        letter = pattern[at]
        if letter == "\\":
            _refuse_escape(pattern[at + 1 : at + 2])
            at += 2
            continue
        if in_set:
            in_set = letter != "]"
        elif letter == "[":
            in_set = True
            # A "]" that comes first is a letter, in both engines.
            at += 1 if pattern[at + 1 : at + 2] == "^" else 0
            at += 1 if pattern[at + 1 : at + 2] == "]" else 0
        elif pattern.startswith("(?", at):
            _refuse_group(pattern, at + 2)
        elif letter in "*+?}" and pattern[at + 1 : at + 2] == "+":
            raise RegexError(f"{_ENGINE} possessive repeats ('{letter}+')")
        at += 1


def _refuse_escape(letter: str) -> None:
    if letter.isdigit():
        raise RegexError(f"{_ENGINE} back-references ('\\{letter}')")
    if letter in ("Z", "N"):
        raise RegexError(f"'\\{letter}' is not known to the rule engine" + ("; write '$'" if letter == "Z" else ""))


def _refuse_group(pattern: str, at: int) -> None:
    rest = pattern[at:]
    if rest.startswith(("=", "!", "<=", "<!")):
        raise RegexError(f"{_ENGINE} look-around ('(?{rest[:2]}')")
    if rest.startswith("P="):
        raise RegexError(f"{_ENGINE} back-references ('(?P=')")
    if rest.startswith((">", "(", "#")):
        raise RegexError(f"'(?{rest[0]}' is not known to the rule engine")
    if not rest.startswith((":", "P<")):
        flags = rest.split(")", 1)[0].split(":", 1)[0]
        if not _GROUP_FLAGS.issuperset(flags):
            raise RegexError(f"'(?{flags}' is not known to the rule engine")
