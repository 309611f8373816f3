"""Search environments: one for each corpus that is named, not written by anybody."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration
from agentmill.synthesis.environments.search.corpus import contents, corpus_digest, read_documents
from agentmill.synthesis.environments.search.sources import corpus_path, is_invented, source_of
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.procedural import proposal

FAMILY = "search"


def corpora(names: Sequence[str]) -> list[Inspiration]:
    """Each corpus as what its environment is made from: the digest of the corpus, and its path or name as the text.

    Raises ``UserError`` for one that is missing, of another kind, or whose first document cannot be
    read, and for two that hold the same.
    """
    found: dict[str, Inspiration] = {}
    for name in names:
        path = corpus_path(name)
        corpus = corpus_digest(path)
        if corpus in found:
            raise UserError(
                f"the corpora {found[corpus].source} and {path.name} hold the same\nleave one of them out",
                ErrorCode.GIVEN_TWICE,
            )
        text = name if is_invented(name) else str(path.resolve())
        found[corpus] = Inspiration(inspiration_id=corpus, text=text, source=path.name)
        with closing(read_documents(path)) as documents:
            next(documents)
    return list(found.values())


class SearchGenerator:
    """Proposes the environment over a corpus; the seed plays no part."""

    async def propose(self, inspiration: Inspiration, seed: int) -> EnvironmentSpec:
        """The environment. Raises ``GenerationError`` for a corpus that has changed, or that cannot be read whole."""
        try:
            path = corpus_path(inspiration.text)
            found = contents(path)
            unchanged = corpus_digest(path) == inspiration.inspiration_id
        except UserError as error:
            raise GenerationError("broken_corpus", str(error)) from error
        if not unchanged:
            raise GenerationError("corpus_changed", f"the corpus {path} changed while environments were made of it")
        return proposal(
            FAMILY,
            inspiration,
            seed,
            {**found},
            name=path.stem,
            source=source_of(inspiration.text, inspiration.inspiration_id),
            structure_digest=inspiration.inspiration_id,
        )
