"""Trajectories: what an agent saw and did, as ADP's flat list of actions and observations.

Class names and the fields ``function``, ``kwargs``, ``content``, ``description``, ``source`` … are those of the Agent
Data Protocol (ADP, arXiv:2510.24702); the other fields hold what ADP lacks and training needs. A trajectory is written
once: verdicts, labels, values and selections are tables of their own, keyed by (trajectory id, item, name).
"""

from __future__ import annotations

from typing import Literal

from agentmill.schemas.records.record import Integer, JsonObject, Record

ObservationSource = Literal["user", "agent", "environment"]
ContextOperation = Literal["fold", "condense", "copied"]
OutcomeStatus = Literal["success", "failure", "unknown"]


class TurnTokens(Record):
    """The exact tokens of one generated turn, as deltas: prompt growth, then what the model sampled.

    The token sequence of a segment is the concatenation of ``prompt_ids + sampled_ids`` over its turns, in order.
    ``segment_start`` is true where ``prompt_ids`` holds the whole prompt, because that prompt is not an extension of
    the sequence before it (or there is none). ``logprobs`` has one natural logarithm per sampled id, or is empty.
    """

    prompt_ids: list[Integer]
    sampled_ids: list[Integer]
    logprobs: list[float]
    segment_start: bool
    finish_reason: str | None = None


class Item(Record):
    """What every action and observation carries.

    ``turn`` is 0 for what precedes the first action and k >= 1 for the k-th turn of the agent and the observations
    that answer it; parallel calls of one turn share it. ``train`` is what the source said of the item, never a
    decision of ours. ``synthetic`` marks text that a model made in the place of an environment or a person.

    Actions of a ``role`` other than ``actor`` are never carried out: words (a reflection, of turn 0; what one ``agent``
    says to others, in turns of their own), or what was prevented (``proposer``). An observation with the
    ``context_operation`` ``condense`` or ``fold`` marks where the context was shortened; in runs of ours its ``turn``
    is the last one left out (``agentmill.schemas.chat``).
    """

    turn: Integer = 0
    tool_call_id: str | None = None
    reward: float | None = None
    error: bool = False
    train: bool | None = None
    agent: str | None = None
    role: str | None = None
    synthetic: bool = False
    state_digest: str | None = None
    context_operation: ContextOperation | None = None


class Action(Item):
    """What every action carries: ``description`` is ADP's thought, ``reasoning_content`` hidden reasoning.

    ``tokens`` is on the first item of a generated turn and nowhere else.
    """

    description: str | None = None
    reasoning_content: str | None = None
    tokens: TurnTokens | None = None


class MessageAction(Action, kw_only=True, tag_field="class_", tag="message_action"):
    """The agent writes ``content`` to the user (or, in a text environment, a command)."""

    content: str


class ApiAction(Action, kw_only=True, tag_field="class_", tag="api_action"):
    """The agent calls the tool ``function`` with ``kwargs``.

    ``raw_arguments`` keeps the text of arguments that are no JSON object; ``kwargs`` is then empty.
    """

    function: str
    kwargs: JsonObject
    raw_arguments: str | None = None


class CodeAction(Action, kw_only=True, tag_field="class_", tag="code_action"):
    """The agent runs ``content`` in ``language``."""

    language: str
    content: str


class TextObservation(Item, kw_only=True, tag_field="class_", tag="text_observation"):
    """Text from the user, another agent or the environment."""

    content: str
    source: ObservationSource
    name: str | None = None


class BoundingBox(Record):
    """A rectangle in pixels from the top left corner."""

    x: float
    y: float
    width: float
    height: float


class ImageAnnotation(Record):
    """A labelled region of an image."""

    text: str
    element_type: str
    bounding_box: BoundingBox


class ImageObservation(Item, kw_only=True, tag_field="class_", tag="image_observation"):
    """An image: ``content`` is its path or the sha256 of its row in the ``images`` table."""

    content: str
    source: ObservationSource
    annotations: list[ImageAnnotation] | None = None


class WebObservation(Item, kw_only=True, tag_field="class_", tag="web_observation"):
    """A web page as the agent saw it; ``viewport_size`` is (width, height) in pixels."""

    html: str | None = None
    axtree: str | None = None
    url: str | None = None
    image_observation: ImageObservation | None = None
    viewport_size: tuple[Integer, Integer] | None = None


AnyAction = MessageAction | ApiAction | CodeAction
AnyObservation = TextObservation | ImageObservation | WebObservation
AnyItem = AnyAction | AnyObservation


class Tool(Record):
    """A function an agent may call; ``parameters`` is a JSON Schema object."""

    name: str
    parameters: JsonObject
    description: str | None = None
    strict: bool | None = None


class Outcome(Record):
    """How a run ended. ``terminated``: goal reached or lost; ``truncated``: cut short by a limit of ours."""

    status: OutcomeStatus = "unknown"
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    reason: str | None = None


class Generation(Record):
    """How we made a trajectory. ``sampling`` holds temperature, top_p, max_tokens … as they were sent.

    ``seed`` is that of the environment: the environment was reset with it, and each turn's sampling seed derives from
    it, of an episode that has a parent from its id, too.
    """

    model: str | None
    revision: str | None
    policy: str
    strategy: str
    scaffold: str
    sampling: JsonObject
    seed: Integer
    round: Integer = 0


class Usage(Record):
    """What a trajectory cost. ``cached_tokens`` are part of ``prompt_tokens``; ``None`` means not reported."""

    prompt_tokens: Integer | None = None
    completion_tokens: Integer | None = None
    cached_tokens: Integer | None = None
    seconds: float | None = None
    cost_usd: float | None = None


class Source(Record):
    """Where an ingested trajectory came from; ``sha256`` is that of the raw record's bytes."""

    dataset: str
    sha256: str
    converter: str
    converter_version: str
    split: str | None = None
    row: Integer | None = None
    licence: str | None = None


class Trajectory(Record):
    """One run of an agent on a task. ``parent_id`` and ``branch_turn`` link the branches of a tree.

    A branch holds its whole history; the items copied from its parent have ``context_operation="copied"``, and
    ``branch_turn`` is its first own turn. A new attempt after feedback has a parent and no ``branch_turn``.
    """

    trajectory_id: str
    content: list[AnyItem]
    task_id: str | None = None
    environment_id: str | None = None
    attempt: Integer = 0
    parent_id: str | None = None
    branch_turn: Integer | None = None
    system_prompt: str | None = None
    tools: list[Tool] = []
    outcome: Outcome = Outcome()
    generation: Generation | None = None
    usage: Usage = Usage()
    source: Source | None = None
    split: str | None = None
    extra: JsonObject = {}
