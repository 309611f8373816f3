"""A click group whose commands are imported when they are called, so that help and errors are immediate."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from schemas.errors import near_match


class LazyGroup(click.Group):
    """Commands as ``name -> ("package.module:attribute", one line of help)``; the line stands in the group's help."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = dict(lazy)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names in the order they were given: the order of work, not of the alphabet."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the command."""
        if cmd_name not in self.lazy:
            return None
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.lazy[cmd_name][0]} is no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Like click's, with the nearest name for one that is unknown."""
        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            known = ", ".join(self.lazy)
            ctx.fail(f"unknown command {args[0]!r}; known: {known}.{near_match(args[0], self.lazy)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in self.lazy.items()])
