"""The models that a step of a recipe may name: as declared, as trained, by round, by route, and the best.

``NAME@base`` is a model as declared, ``NAME@last`` the newest one trained from it, ``NAME@round-02`` that of a round,
``NAME@best`` that of the best round, and after a fork ``NAME@ROUTE`` that of a route.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentmill.pipelines.operators.train import REWARD_MODEL, Training
from agentmill.pipelines.recipes.grammar import BEST, ROUND_NAME, Recipe, one_of, round_name
from agentmill.pipelines.recipes.known_tables import may_be_missing
from agentmill.pipelines.recipes.step import Step
from agentmill.pipelines.recipes.stopping import Decision
from agentmill.pipelines.serving.models import ModelConfig, check_scorer
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError

BASE, LAST = "base", "last"


class KnownModels:
    """The versions of each model, as far as the steps were read."""

    def __init__(self, recipe: Recipe, revisions: Mapping[str, str]) -> None:
        self._declared = recipe.models
        self._versions = {name: {BASE: model.pinned(revisions).named(name)} for name, model in recipe.models.items()}
        self._will_be_trained: set[str] = set()
        self._versions_named = set(re.findall(r"@([a-z]+(?:-[0-9]+)?)", msgspec.json.encode(recipe.steps).decode()))
        self._adapters: set[str] = set()
        self._not_served: dict[str, str] = {}
        self._rounds: dict[str, list[str]] = {}
        self._certain_rounds = 0
        self._uncertain: list[ModelConfig] = []
        self.untrainable: dict[str, UserError] = {}
        """What is wrong with trainings of models that cannot be trained: they may be left out."""

    def enter_loop(self, steps: Iterable[Mapping[str, Any]], certain: int) -> None:
        """A loop of these steps begins, of which so many rounds are ``certain``.

        Until its steps train a model, ``@last`` is the declared one.
        """
        self._certain_rounds = certain
        self._will_be_trained = {str(step["model"]).partition("@")[0] for step in steps if "model" in step}

    def leave_loop(self, decision: Decision | None) -> None:
        """The loop ends, with the decision on its best round; where that is not known yet, ``@best`` is the last.

        Without ``until`` there is no decision, and no best round.
        """
        trained = self._will_be_trained if decision is not None else ()
        for versions in (self._versions[name] for name in trained if name in self._versions):
            version = LAST if decision is None or decision.best is None else round_name(decision.best)
            if version in versions:
                versions[BEST] = versions[version]
        self._will_be_trained = set()

    def copied(self) -> dict[str, dict[str, ModelConfig]]:
        """All versions, to come back to with ``restore``."""
        return {name: dict(versions) for name, versions in self._versions.items()}

    def restore(self, versions: Mapping[str, Mapping[str, ModelConfig]]) -> None:
        """Know what was known before."""
        self._versions = {name: dict(known) for name, known in versions.items()}

    def made_in(
        self, route: str, before: Mapping[str, Mapping[str, ModelConfig]], after: dict[str, dict[str, ModelConfig]]
    ) -> None:
        """Add to ``after`` what a route has trained since ``before``."""
        for name, known in self._versions.items():
            earlier = before.get(name)
            if earlier is None or known[BASE] is not earlier[BASE]:
                after[f"{route}/{name}"] = known
            elif known.get(LAST) is not earlier.get(LAST):
                after[name][route] = known[LAST]

    def named(self, reference: str, where: str) -> ModelConfig:
        """The model that ``reference`` names, with the adapters that are served with it.

        Raises ``UserError`` for an adapter of a kind that vLLM does not serve.
        """
        config = self.declared_or_trained(reference, where)
        kinds = self._not_served.get(config.adapter or "")
        if kinds:
            raise UserError(
                f"{where}: {reference!r} is an adapter with {kinds}, which vLLM does not serve with its model\n"
                f"set lora.merge: true in the step {config.adapter!r}, or train it without {kinds}",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )
        return self._beside_adapters(config)

    def declared_or_trained(self, reference: str, where: str) -> ModelConfig:
        """The model that ``NAME``, ``NAME@base``, ``NAME@last`` or, after a fork, ``NAME@ROUTE`` refers to.

        NAME is an entry of ``models`` or the output of a training.
        """
        name, _, version = reference.partition("@")
        known = self._versions[one_of(name, self._versions, "model", where)]
        versions = {**known, **dict.fromkeys(self._rounds.get(name, ())), LAST: None}
        version = one_of(version or BASE, versions, f"version of the model {name!r}:", where)
        if ROUND_NAME.fullmatch(version) and any(known.get(version) is each for each in self._uncertain):
            raise may_be_missing(reference, where, f"{name}@{LAST} or {name}@{BEST}")
        if version in known:
            return known[version]
        if name in self._will_be_trained and version == LAST:
            return known[BASE]
        raise UserError(
            f"{where}: no step before this one trains {name!r}; write {name}@{BASE} for the model as declared",
            ErrorCode.MODEL_NOT_TRAINED_YET,
        )

    def note_training(self, step: Step, training: Training, name: str) -> None:
        """From now on what ``step`` makes is a model by its ``name``, and ``@last`` of the model that it trains.

        A reward model goes by the name of its step alone: it does not act in the place of what it was trained from.
        """
        if name in self._declared:
            raise UserError(
                f"{step.where}: {name!r} is a model of the recipe; give what is trained another name (as: …)",
                ErrorCode.NAME_TAKEN,
            )
        base = self.declared_or_trained(training.model, step.where)
        if step.name in self.untrainable:
            # Where this training is left out, what cannot be trained acts in the place of the trained model, too.
            self._versions[name] = {BASE: base}
            if training.makes != REWARD_MODEL:
                # A copy: identity separates what a route has trained from what was there before.
                self._note_newest(step, training, base.model_copy())
            return
        scores = training.makes == REWARD_MODEL
        start = base if training.keeps_adapter else without_adapter(base)
        learned = start.trained(str(base.model if training.keeps_adapter else step.folder), scores)
        if training.keeps_adapter:
            learned = serving(learned, {**learned.server.lora, step.name: str(step.folder)}, step.name)
        if not scores:
            if training.keeps_adapter and training.lora and training.lora.not_served:
                self._not_served[step.name] = " and ".join(training.lora.not_served)
            elif training.keeps_adapter:
                self._adapters.add(step.name)
            self._note_newest(step, training, learned)
        self._versions[name] = {BASE: learned}

    def _note_newest(self, step: Step, training: Training, learned: ModelConfig) -> None:
        """From now on ``learned`` is the newest model that is trained from what ``training`` starts from."""
        name = training.model.partition("@")[0]
        versions = self._versions[name]
        versions[LAST] = learned
        if step.context.round:
            self._rounds.setdefault(name, []).append(round_name(step.context.round))
        # Adapters that can be named are served, so a round is noted only where the recipe names it.
        if step.context.round and self._versions_named & {round_name(step.context.round), BEST}:
            versions[round_name(step.context.round)] = learned
            if step.context.round > self._certain_rounds:
                self._uncertain.append(learned)

    def _beside_adapters(self, config: ModelConfig) -> ModelConfig:
        """``config`` with all adapters of its model that can be named now, so that one server serves them all."""
        known = (each for versions in self._versions.values() for each in versions.values())
        adapters = {
            each.adapter: each.server.lora[each.adapter]
            for each in known
            if each.managed and each.model == config.model and each.adapter in self._adapters
        }
        if not (config.managed and adapters):
            return config
        return serving(config, {**adapters, **config.server.lora}, config.adapter)


def check_kinds(step: Step) -> None:
    """Raises ``UserError`` for a model that writes where one has to score, and for the reverse."""
    parameters = step.parameters
    # A reward model may be trained further as one.
    may_score = isinstance(parameters, Training) and parameters.makes == REWARD_MODEL
    for role, name in parameters.policies().items():
        if role in parameters.scorer_roles:
            check_scorer(step.models[role], name)
        elif step.models[role].scores and not may_score:
            raise UserError(
                f"model {name!r} is a reward model, which scores text and cannot act as `{role}`\n"
                "name a model that writes; reward models are for the step scorer and tree_search (value: scorer)",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )


def check_trainable(step: Step) -> None:
    """Raises ``UserError`` for a model that the training ``step`` cannot start from, or be held to."""
    for role, reference in step.parameters.policies().items():
        name, config = reference.partition("@")[0], step.models[role]
        use = "be trained" if role == "model" else f"be a {role}"
        if not config.managed:
            expected = "expected policy: vllm with a model folder, bundled:… or one on the Hub, and no endpoints"
            raise UserError(
                f"{step.where}: model {name!r} cannot {use}; {expected}\n"
                "to run everything but trainings and evaluations: agentmill run … --only data",
                ErrorCode.MODEL_OF_WRONG_KIND,
            )
    if isinstance(step.parameters, Training) and step.parameters.makes == REWARD_MODEL:
        check_learns_scores(step)


def check_learns_scores(step: Step) -> None:
    """Raises ``UserError`` for a reward model that is to go on from an adapter of a model that writes."""
    config = step.models["model"]
    if config.adapter is not None and not config.scores:
        raise UserError(
            f"{step.where}: model {config.adapter!r} is an adapter of a model that writes, and cannot learn to score\n"
            "start from its base, or train it without lora.merge: false",
            ErrorCode.MODEL_OF_WRONG_KIND,
        )


def without_adapter(config: ModelConfig) -> ModelConfig:
    """``config`` without the adapter that acts: what is trained on from it is a whole model."""
    if config.adapter is None:
        return config
    return serving(config, {name: path for name, path in config.server.lora.items() if name != config.adapter}, None)


def serving(config: ModelConfig, adapters: dict[str, str], adapter: str | None) -> ModelConfig:
    """``config`` with ``adapters`` served with its model, of which ``adapter`` acts."""
    server = config.server.model_copy(update={"lora": adapters})
    return config.model_copy(update={"server": server, "adapter": adapter})
