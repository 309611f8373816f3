"""Operators by name: what the steps of a recipe may say. Each is a configuration class.

Every strategy, every verifier and every view is an operator by its own name, with its own parameters.
"""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentmill.schemas.registry import Registry
from agentmill.schemas.views import FAMILY_VIEWS, PAIR_VIEWS, VIEWS
from agentmill.synthesis.strategies import STRATEGIES
from agentmill.synthesis.verifiers import VERIFIERS

if TYPE_CHECKING:
    from agentmill.pipelines.operators.operator import Operator

VIEW_OPERATORS = ((VIEWS, "Rows"), (PAIR_VIEWS, "Pairs"), (FAMILY_VIEWS, "Families"))
"""The views, and the class in ``training_rows`` that runs them."""


class Operators(Registry["type[Operator]"]):
    """Configuration classes of steps by name; of a strategy, a verifier or a view, the operator that runs it."""

    def load(self, name: str) -> type[Operator]:
        """The configuration class of a step. Raises ``UserError`` for an unknown name."""
        loaded: Any = super().load(name)
        # By the entry and not by the name: some strategies and views have an operator of their own under their name.
        if self[name] == VERIFIERS.get(name):
            from agentmill.pipelines.operators import judged_verify, verify
            from agentmill.synthesis.verifiers.verifier import ModelVerifier

            if not issubclass(loaded, ModelVerifier):
                return verify.operator_of(loaded)
            asking = judged_verify.ScoredVerify if loaded.asks_scorer else judged_verify.JudgedVerify
            return verify.operator_of(loaded, asking)
        if self[name] == STRATEGIES.get(name):
            from agentmill.pipelines.operators import rollout

            return rollout.operator_of(loaded)
        base = next((base for views, base in VIEW_OPERATORS if self[name] == views.get(name)), None)
        if base is None:
            return cast("type[Operator]", loaded)
        from agentmill.pipelines.operators import training_rows

        return training_rows.operator_of(loaded, getattr(training_rows, base))


OPERATORS = Operators(
    "operator",
    {
        **STRATEGIES,
        **VERIFIERS,
        **VIEWS,
        **PAIR_VIEWS,
        **FAMILY_VIEWS,
        "admit": "agentmill.pipelines.operators.admit:Admit",
        "audit_judge": "agentmill.pipelines.operators.audit_judge:AuditJudge",
        "backfill": "agentmill.pipelines.operators.backfill:Backfill",
        "branch": "agentmill.pipelines.operators.branch:Branch",
        "call_first": "agentmill.pipelines.operators.call_first:CallFirst",
        "check_tokens": "agentmill.pipelines.operators.check_tokens:CheckTokens",
        "combine": "agentmill.pipelines.operators.combine:Combine",
        "compose": "agentmill.pipelines.operators.compose:Compose",
        "contrast": "agentmill.pipelines.operators.contrast:Contrast",
        "corpus_tasks": "agentmill.pipelines.operators.corpus_tasks:CorpusTasks",
        "decontaminate": "agentmill.pipelines.operators.decontaminate:Decontaminate",
        "dedup": "agentmill.pipelines.operators.dedup:Dedup",
        "diagnose": "agentmill.pipelines.operators.diagnose:Diagnose",
        "difficulty_band": "agentmill.pipelines.operators.difficulty_band:DifficultyBand",
        "evaluate": "agentmill.pipelines.operators.evaluate:Evaluate",
        "evolve": "agentmill.pipelines.operators.evolve:Evolve",
        "expert": "agentmill.pipelines.operators.rollout:Expert",
        "filter": "agentmill.pipelines.operators.filter:Filter",
        "first_error": "agentmill.pipelines.operators.first_error:FirstError",
        "imagine": "agentmill.pipelines.operators.memory:Imagine",
        "inject": "agentmill.pipelines.operators.inject:Inject",
        "memory": "agentmill.pipelines.operators.memory:Memory",
        "mix": "agentmill.pipelines.operators.mix:Mix",
        "multi_agent": "agentmill.pipelines.operators.multi_agent:MultiAgent",
        "normalize": "agentmill.pipelines.operators.normalize:Normalize",
        "pick": "agentmill.pipelines.operators.pick:Pick",
        "propose": "agentmill.pipelines.operators.propose:Propose",
        "quality": "agentmill.pipelines.operators.quality:Quality",
        "redact": "agentmill.pipelines.operators.redact:Redact",
        "replay": "agentmill.pipelines.operators.replay:Replay",
        "revise": "agentmill.pipelines.operators.revise:Revise",
        "select_diverse": "agentmill.pipelines.operators.select_diverse:SelectDiverse",
        "simulate": "agentmill.pipelines.operators.simulate:Simulate",
        "spec_env": "agentmill.pipelines.operators.spec_env:SpecEnv",
        "split": "agentmill.pipelines.operators.split:Split",
        "step_agreement": "agentmill.pipelines.operators.step_agreement:StepAgreement",
        "step_effect": "agentmill.pipelines.operators.step_effect:StepEffect",
        "step_value": "agentmill.pipelines.operators.step_value:StepValue",
        "tool_graph": "agentmill.pipelines.operators.tool_graph:ToolGraph",
        "tool_need": "agentmill.pipelines.operators.tool_need:ToolNeed",
        "train_dpo": "agentmill.pipelines.operators.train:TrainDpo",
        "train_kto": "agentmill.pipelines.operators.train:TrainKto",
        "train_reward": "agentmill.pipelines.operators.train:TrainReward",
        "train_sft": "agentmill.pipelines.operators.train:TrainSft",
        "tree_search": "agentmill.pipelines.operators.tree_search:TreeSearch",
        "unpaired": "agentmill.pipelines.operators.training_rows:Unpaired",
        "wrap_env": "agentmill.pipelines.operators.wrap_env:WrapEnv",
    },
    group="operators",
)


KINDS: Registry[Registry[Any]] = Registry(
    "kind of plug-in",
    {
        "operators": "agentmill.pipelines.operators.registry:OPERATORS",
        "environments": "agentmill.synthesis.environments:ENVIRONMENTS",
        "generators": "agentmill.synthesis.generators:GENERATORS",
        "policies": "agentmill.synthesis.policies:POLICIES",
        "strategies": "agentmill.synthesis.strategies:STRATEGIES",
        "verifiers": "agentmill.synthesis.verifiers:VERIFIERS",
        "views": "agentmill.schemas.views:VIEWS",
        "pair_views": "agentmill.schemas.views:PAIR_VIEWS",
        "family_views": "agentmill.schemas.views:FAMILY_VIEWS",
        "formats": "agentmill.schemas.formats:FORMATS",
        "dialects": "agentmill.schemas.dialects:DIALECTS",
    },
)


def described(kind: str) -> dict[str, str]:
    """Name to description of every plug-in of ``kind``. Raises ``UserError`` for an unknown kind."""
    return {name: description(entry) for name, entry in KINDS.load(kind).items()}


def description(entry: str) -> str:
    """First line of the docstring of ``"package.module:attribute"``, or else of its module.

    It is read from the source and nothing of the plug-in is imported, so a listing is quick and works where what a
    plug-in needs is not installed.
    """
    module, _, attribute = entry.partition(":")
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    named = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef))
    docstring = next((ast.get_docstring(node) for node in named if node.name == attribute), None)
    # The double backticks of docstrings are for documents; in a terminal one on each side is enough.
    return (docstring or ast.get_docstring(tree) or "").partition("\n")[0].replace("``", "`")
