"""Reward models behind vLLM's pooling API: one number for a whole conversation, and no turns.

A conversation is sent as token ids, as the training of the model rendered it (``ConversationTokenizer``), and the
answer is the raw output of the head (``use_activation`` off: no sigmoid or softmax), so that it equals what the model
gives in transformers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol, runtime_checkable

import msgspec

from agentmill.schemas.config import validate
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.ids import digest
from agentmill.schemas.models import TRAINING_RECORD, read_json
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Trajectory, Usage
from agentmill.schemas.templates.folder_tokenizer import ConversationTokenizer, tokenizer_folder
from agentmill.schemas.templates.rendering import TemplateError
from agentmill.schemas.views import PAIR_VIEWS
from agentmill.schemas.views.conversation import ConversationTurn
from agentmill.schemas.views.dialogue import Dialogue
from agentmill.synthesis.policies.completion import Api
from agentmill.synthesis.policies.model_client import ModelClient
from agentmill.synthesis.policies.policy import ContextOverflow, Conversation, PolicyError, PolicySettings

SCORER = "scorer"
"""The role of a reward model in a step."""

TEMPLATE, MALFORMED = "template", "malformed"
"""The reasons of a conversation that the chat template of the model cannot show, and of an answer that is no score."""


class Score(Record):
    """What a reward model returns for a conversation of ``tokens`` tokens; ``rendering`` is the digest of their ids."""

    value: float
    tokens: int
    rendering: str
    usage: Usage = Usage()


class Shown(msgspec.Struct, frozen=True):
    """How trajectories become the conversations that a reward model scores: as in the rows that it was trained on.

    ``to_last_turn``: they end with the agent's last turn, as the sides of pairs do, and not with what answers it.
    """

    dialogue: Dialogue
    to_last_turn: bool = False

    def conversation(self, trajectory: Trajectory) -> list[ConversationTurn]:
        """The conversation. Raises ``Unused`` as ``Dialogue.dialogue``."""
        turns = self.dialogue.dialogue(trajectory)
        ends = [place for place, turn in enumerate(turns, 1) if turn.step is not None]
        return turns[: ends[-1]] if self.to_last_turn and ends else turns


@runtime_checkable
class Scorer(Protocol):
    """What scores conversations. ``shown`` makes one of a trajectory."""

    name: str
    model: str | None
    revision: str | None
    shown: Shown

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        """The score of a conversation; ``functions`` is JSON text, as in a row.

        Raises ``PolicyError`` as ``ModelClient.answer``, ``ContextOverflow`` for a conversation that is longer than the
        model's context, and with the reason ``template`` for one that its chat template cannot show.
        """


def scorer_of(policy: object) -> Scorer:
    """A model as one that scores. Raises ``PolicyError`` (``no_scorer``) for any other."""
    if not isinstance(policy, Scorer):
        raise PolicyError("no_scorer", "the model writes text; expected a reward model, as train_reward makes it")
    return policy


async def score_of(scorer: Scorer, trajectory: Trajectory, turns: Sequence[ConversationTurn]) -> Score | str:
    """The score of the conversation ``turns`` of a trajectory, or a word for why it has none.

    These are ``too_long``, ``template`` and ``malformed`` (the server answers no number). Raises ``PolicyError`` where
    the model cannot be asked.
    """
    messages = [turn.message for turn in turns]
    try:
        return await scorer.score(trajectory.trajectory_id, messages, scorer.shown.dialogue.tools_column(trajectory))
    except ContextOverflow:
        return "too_long"
    except PolicyError as error:
        if error.reason not in (TEMPLATE, MALFORMED):
            raise
        return error.reason


def _estimate(body: JsonObject) -> Usage:
    return Usage(prompt_tokens=sum(map(len, body["input"])), completion_tokens=0)


def _shortest(body: JsonObject) -> JsonObject:
    return {**body, "input": [ids[:1] for ids in body["input"]]}


SCORING = Api(
    path="/classify",
    estimate=_estimate,
    kind_of=lambda body: str(body["model"]).encode(),
    short_request=_shortest,
    same_parameters=_shortest,
    versioned=False,
    advice="a scorer is what train_reward made; serve it yourself with: vllm serve FOLDER --runner pooling",
)
"""Scores of texts, as vLLM's pooling server gives them."""


class RewardModel(ModelClient):
    """A reward model that is served; ``settings.tokenizer`` is the folder of its tokenizer.

    ``act`` raises ``PolicyError``: it writes nothing.
    """

    name = "reward_model"
    api: ClassVar[Api] = SCORING

    def __init__(self, settings: PolicySettings) -> None:
        super().__init__(settings)
        assert settings.tokenizer is not None
        folder = tokenizer_folder(settings.tokenizer)
        self.shown = trained_on(folder)
        self._tokenizer = ConversationTokenizer(folder)

    async def score(self, episode_id: str, messages: Sequence[Message], functions: str | None) -> Score:
        """As ``Scorer.score``."""
        try:
            # In a thread: a template of foreign make may take seconds, and others are waiting for answers.
            ids = await asyncio.to_thread(self._tokenizer.encode, messages, functions)
        except TemplateError as error:
            raise PolicyError(TEMPLATE, str(error)) from error
        if not ids:
            raise PolicyError(TEMPLATE, "the chat template shows nothing of the conversation")
        body = {"model": self._served, "input": [ids], "use_activation": False}
        score, usage = await self.answer(episode_id, body, lambda text, seconds: read_score(text, ids, seconds))
        return msgspec.structs.replace(score, usage=usage)

    async def act(self, conversation: Conversation) -> NoReturn:
        """Raises ``PolicyError``."""
        del conversation
        raise PolicyError("unsupported", f"{self.model} is a reward model, which scores text and writes none")


def trained_on(folder: Path) -> Shown:
    """How trajectories were shown in the rows of the model in ``folder``; of a foreign one, as views do by default.

    Raises ``UserError`` where its rows were made in several ways.
    """
    views = read_json(folder / TRAINING_RECORD).get("views") or []
    fields = Dialogue.model_fields
    given = [{name: value for name, value in parameters.items() if name in fields} for _, parameters in views]
    pairs = {view in PAIR_VIEWS for view, _ in views}
    if any(each != given[0] for each in given) or len(pairs) > 1:
        raise UserError(
            f"the reward model {folder} was trained on rows of several views, which show trajectories differently\n"
            "train it on rows with one `role`, `linearize`, `tool_format` and `system_prompts`",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )
    dialogue = validate(Dialogue, given[0] if given else {}, f"{folder / TRAINING_RECORD}: views")
    return Shown(dialogue, to_last_turn=pairs == {True})


class ClassifyData(msgspec.Struct):
    """The answer to one text; ``probs`` are the outputs of the head, whatever they are."""

    probs: list[float]


class Classification(msgspec.Struct):
    """The part of an answer that is used; unknown fields are ignored."""

    data: list[ClassifyData]


def read_score(text: bytes, ids: Sequence[int], seconds: float) -> Score:
    """The score in a server's answer. Raises ``PolicyError`` (``malformed``) for what is not one finite number."""
    try:
        answer = msgspec.json.decode(text, type=Classification)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PolicyError(MALFORMED, f"the answer is no score: {error}") from error
    found = [value for each in answer.data for value in each.probs]
    if len(found) != 1:
        raise PolicyError(MALFORMED, f"the answer has {len(found)} scores, expected one: is it a reward model?")
    if not math.isfinite(found[0]):
        raise PolicyError(MALFORMED, f"the score is {found[0]}")
    usage = Usage(prompt_tokens=len(ids), completion_tokens=0, seconds=seconds)
    return Score(value=found[0], tokens=len(ids), rendering=digest("rendering", list(ids)), usage=usage)
