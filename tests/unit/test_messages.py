"""The list of messages changes only on purpose, and messages keep the words of the glossary."""

from __future__ import annotations

import re

from tests.unit.messages import (
    GOLDEN,
    html_messages,
    js_messages,
    messages,
    python_messages,
    rust_messages,
    toml_messages,
    tsv_messages,
)

# "can not" in two words, and the old words for the sandbox.
_AVOIDED = re.compile(r"\b(can not|fence[ds]?|enclosure|somebody|whoever)\b", re.IGNORECASE)


def test_the_list_of_messages_is_up_to_date() -> None:
    found, written = set(messages()), set(GOLDEN.read_text().splitlines())
    changed = sorted(f"+ {one}" for one in found - written)
    changed += sorted(f"- {one}" for one in written - found)
    assert not changed, "run `python -m tests.unit.messages --write`\n" + "\n".join(changed)


def test_messages_use_the_words_of_the_glossary() -> None:
    wrong = [
        f"{message} ({' '.join(files)})"
        for message, files in messages().items()
        if _AVOIDED.search(message)
    ]
    assert not wrong, "\n".join(wrong)


def test_python_messages_are_the_strings_that_are_no_docstring() -> None:
    text = '''
"""This is a docstring."""
raise Error(f"cannot open {path!r}: "
            f"{error}", hint="type `ls` to see it")
add("--quiet", help="print less")
name = "one-word"
'''
    assert list(python_messages(text)) == [
        "cannot open {}: {}",
        "type `ls` to see it",
        "print less",
    ]


def test_rust_messages_are_the_strings_outside_comments_and_test_modules() -> None:
    text = r"""
// "a comment is no message"
#[error("cannot open {path}: \
         {source}")]
const QUOTE: char = '"';
#[cfg(test)]
mod tests {
    fn test() { panic!("{} is not a message", "this one") }
}
const LAST: &str = "the last one counts";
"""
    assert list(rust_messages(text)) == ["cannot open {}: {}", "the last one counts"]


def test_table_messages_are_the_reasons() -> None:
    assert list(toml_messages('names = ["a b c"]\n[git]\nwhy = "git runs it"\nany = ["x"]')) == [
        "git runs it"
    ]
    assert list(tsv_messages("# kind\tgap\nright\tno refer\nright\t-\n")) == ["no refer"]


def test_page_messages_are_the_texts_that_a_person_sees() -> None:
    page = """<!-- not this --><section aria-label="Questions"><p id="none">There are
  none.</p><kbd>y</kbd></section>"""
    assert list(html_messages(page)) == ["Questions", "There are none."]
    script = """
// "this is a comment"
$("state").textContent = ids.length ? `open: ${ids.length}` : "connected";
document.querySelector(`[data-id="${id}"]`).append(element("p", `${more} more lines wait`, "more"));
"""
    assert list(js_messages(script)) == ["open: {}", "connected", "{} more lines wait"]
