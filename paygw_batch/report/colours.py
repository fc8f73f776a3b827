"""Defines the colours of states, once for the workbook and the page."""

from collections.abc import Mapping
from types import MappingProxyType

STATE_COLOURS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "in_doubt": ("#FFE699", "#7F6000"),
        "rejected": ("#F8CBAD", "#833C0B"),
        "returned": ("#F4B0B0", "#7B1F1F"),
        "invalid": ("#E4D0EE", "#5B2C6F"),
        "ready": ("#CFE2F3", "#1F4E78"),
        "accepted": ("#E2F0D9", "#385723"),
        "paid": ("#A9D18E", "#274E13"),
    }
)
"""State -> (fill, ink), what needs a person first. Each pair can be read in grey as well."""
