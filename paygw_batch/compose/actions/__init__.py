"""Does what a person or a program asks for, once for every surface: no click, no terminal, no page."""
