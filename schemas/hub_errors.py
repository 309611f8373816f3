"""What the Hub answers in place of a data set, as errors that a user can act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from schemas.errors import UserError

_ACCESS = "if it is private or gated, ask for access on its page and log in with `hf auth login` or HF_TOKEN"


@contextmanager
def hub_errors(address: str) -> Iterator[None]:
    """Raises ``UserError`` for what the Hub, or the way to it, says of ``address``."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except UserError:
        raise
    except errors.GatedRepoError:
        raise UserError(f"{address} is gated; {_ACCESS}") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"there is no data set {address} on the Hub, or it is not to be seen; {_ACCESS}") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"{address}: there is no such revision; expected a branch, a tag or a commit") from None
    except errors.OfflineModeIsEnabled:
        raise UserError(
            f"{address} cannot be read while HF_HUB_OFFLINE is set; unset it, or name local files"
        ) from None
    except errors.HFValidationError as error:
        raise UserError(f"{address}: {_first_line(error)}") from None
    except errors.HfHubHTTPError as error:
        raise UserError(f"{address}: the Hub answers {_first_line(error)}; run the same command again") from error
    except (httpx2.HTTPError, ConnectionError) as error:
        reason = f"{type(error).__name__}: {_first_line(error)}"
        raise UserError(f"{address}: the Hub cannot be reached ({reason}); run again, or name local files") from error
    except (FileNotFoundError, RuntimeError) as error:  # what `datasets` raises: no data files, a data set of code …
        raise UserError(f"{address}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
