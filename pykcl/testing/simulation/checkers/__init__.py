"""Checkers: each watches one kind of thing that hosts do, and reports the first guarantee that is broken."""
