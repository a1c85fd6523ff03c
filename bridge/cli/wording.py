"""Words of messages in their two forms: for the model, and for the person at a terminal."""

from __future__ import annotations

PERSONAL = {
    "The client was asked whether to apply the plan, and declined.": "Plan declined.",
    "The client was asked whether": "You were asked whether",
    " Ask the user how to proceed; don't work around this.": "",
    "Ask the user how to proceed; don't work around this.": "",
    " Ask the user how to proceed.": "",
    "Only the user can allow it: they ": "To allow it, ",
    ". Or they ": ". Or ",
    "in a terminal, which asks them": "in a terminal, which asks you",
    "raise `timeout` (max": "raise --timeout (max",
}
"""Words of the model's form, and those of a person's. The model's form is in the code that raises
an error, since most errors reach a model."""


def for_person(text: str) -> str:
    """Return a message as a person at a terminal reads it."""
    for words, personal in PERSONAL.items():
        text = text.replace(words, personal)
    return text
