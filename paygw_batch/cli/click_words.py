"""Gives click our catalogue: it says what is wrong with a command line by gettext, and so in the chosen language."""

from click import core, exceptions, parser, termui, types

from paygw_batch.language import gettext, mark_all, mark_count, ngettext

_SAID = mark_all(
    "Error: {message}",
    "Try '{command} {option}' for help.",
    "Invalid value: {message}",
    "Invalid value for {param_hint}: {message}",
    "Missing argument",
    "Missing option",
    "Missing command.",
    "No such option {name!r}.",
    "No such command {name!r}.",
    "Option {name!r} does not take a value.",
    "{value!r} is not a valid {number_type}.",
    "{value} is not in the range {range}.",
    "Choose from:\n\t{choices}",
)
"""What click says of a command line that cannot be read, for the catalogue."""
_COUNTED = (
    mark_count("Did you mean {possibility}?", "(Did you mean one of: {possibilities}?)"),
    mark_count("Got unexpected extra argument ({args})", "Got unexpected extra arguments ({args})"),
    mark_count("Option {name!r} requires an argument.", "Option {name!r} requires {nargs} arguments."),
    mark_count("{value!r} is not {choice}.", "{value!r} is not one of {choices}."),
)


def speak_our_languages() -> None:
    """Have click translate by our catalogue. Its own function would look for catalogues of the system."""
    for module in (core, exceptions, parser, termui, types):
        for name, ours in (("_", gettext), ("ngettext", ngettext)):
            if hasattr(module, name):
                setattr(module, name, ours)
