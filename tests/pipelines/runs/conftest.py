"""The run that reports are written of."""

from tests.pipelines.report.conftest import run

__all__ = ["run"]
