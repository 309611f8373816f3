"""``answer_match``: whether what the agent answers is what the task knows for right.

Texts are compared after the normalisation of SQuAD (Rajpurkar et al., arXiv:1606.05250), numbers within a tolerance.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec
from pydantic import Field

from agentmill.schemas.conditions import reaches
from agentmill.schemas.ids import digest
from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.environments.environment import Environment
from agentmill.synthesis.verifiers.action_pattern import ActionPattern, Regex
from agentmill.synthesis.verifiers.grounding import DOTTED, NUMBER, with_plain_signs
from agentmill.synthesis.verifiers.rules import answer_at, last_answer
from agentmill.synthesis.verifiers.verifier import Need, Verifier, listed_at

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
APART = re.compile(rf"(?<![^\W\d]-){NUMBER.pattern}")
"""A number that is no part of a name such as F-16, which may be written F16; the 5 of 3-5 is one."""


class AnswerMatch(Verifier):
    """Whether the answer of each trajectory equals one that its task gives, as a text or as a number."""

    needs: ClassVar[Sequence[Need]] = ("tasks",)

    name: str = "answer_match"
    gold: str = Field("goal.answer", description="where a task has its answer: a text, a number, or a list of either")
    answer: ActionPattern | None = Field(
        default=None, description="the action that answers, as {tool: submit}; by default the agent's last one"
    )
    extract: Regex | None = Field(
        default=None, description="the part of the answer that counts: the first group, or all that is matched"
    )
    method: Literal["exact", "contains", "f1"] = Field(
        "exact", description="the answer is the gold one, holds it, or shares words with it (F1)"
    )
    normalise: bool = Field(True, description="texts without case, punctuation, articles and repeated spaces")
    tolerance: float = Field(
        1e-6, ge=0, description="relative error of a number that is still right; by default of whole numbers none is"
    )
    every: bool = Field(False, description="of several gold answers all are needed, not one of them")
    pass_at: float = Field(1.0, gt=0, le=1, description="the score that passes")

    async def verify(
        self, task: Task | None, trajectory: Trajectory, environment: Environment | None = None
    ) -> Verdict:
        """Unscored (``no_gold``) where the task has no answer; without an answer (``no_answer``) it fails.

        The score is 1 or 0, with ``f1`` the share of words; of several gold answers the best, with ``every`` the mean.
        """
        del environment
        verdict = self.verdict(trajectory, "gold")
        golds = _golds(task, self.gold)
        if not golds:
            return msgspec.structs.replace(verdict, reason="no_gold")
        place, text = answer_of(trajectory.content, self.answer, self.extract)
        if text is None or not text.strip():
            return msgspec.structs.replace(verdict, status="scored", score=0.0, passed=False, reason="no_answer")
        scores = [self.score_of(text, gold) for gold in golds]
        score = sum(scores) / len(scores) if self.every else max(scores)
        evidence = {"answer": text[:1000], "item": place, "gold": [str(gold) for gold in golds]}
        passed = reaches(score, self.pass_at)
        return msgspec.structs.replace(verdict, status="scored", score=score, passed=passed, evidence=evidence)

    def score_of(self, text: str, gold: str | float) -> float:
        """1 where an answer is the gold one, else 0; with ``f1`` the share of words."""
        if not isinstance(gold, str) or number_of(gold) is not None:
            return float(self._equals_number(text, gold))
        answer, wanted = _comparable(text, gold) if self.normalise else (text.strip(), gold.strip())
        if self.method == "exact":
            same = _numbers(text) == _numbers(gold) and DOTTED.findall(text) == DOTTED.findall(gold)
            return float(same and answer == wanted)
        if self.method == "contains":
            # Without decimal points and signs 1.5 would be in 15, and -5 in 5.
            there = _numbers(text)
            held = set(DOTTED.findall(gold)) <= set(DOTTED.findall(text)) and all(
                any(each is not None and self._near(each, number) for each in there)
                for number in _numbers(gold)
                if number is not None
            )
            return float(held and f" {wanted} " in f" {answer} ")
        return f1(*_tokens(text, gold)) if self.normalise else f1(answer.split(), wanted.split())

    def _equals_number(self, text: str, gold: str | float) -> bool:
        """Whether the answer is the number, or, unless it must be exact, holds it."""
        wanted = number_of(str(gold))
        alone = number_of(text)
        found = [alone] if alone is not None else _numbers(text)
        if alone is None and self.method == "exact" and len(found) != 1:
            return False
        return any(each is not None and wanted is not None and self._near(each, wanted) for each in found)

    def _near(self, value: float, wanted: float) -> bool:
        if "tolerance" not in self.model_fields_set and value.is_integer() and wanted.is_integer():
            return value == wanted  # such as an id, of which another one is near
        return math.isclose(value, wanted, rel_tol=self.tolerance, abs_tol=self.tolerance if wanted == 0 else 0.0)


def answer_of(
    content: Sequence[AnyItem], answer: ActionPattern | None, extract: str | None = None
) -> tuple[int | None, str | None]:
    """The item that answers and its text: the last one that ``answer`` fits, by default the agent's last action.

    With ``extract`` the text is the last match, or its first group. It is ``None`` where there is no item or no match.
    """
    place, text = last_answer(content)
    if answer is not None:
        place = max(answer.places(content), default=None)
        text = "" if place is None else answer_at(content, place)
    if place is None or extract is None:
        return place, None if place is None else text
    found = list(re.finditer(extract, text))
    return place, (found[-1][1] if found[-1].re.groups else found[-1][0]) if found else None


def normalise_text(text: str) -> str:
    """A text without case, punctuation, articles and repeated spaces, as SQuAD's script compares answers."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def _comparable(answer: str, gold: str) -> tuple[str, str]:
    """Both as ``normalise_text``, or if nothing of the gold one is left, with articles, or as they are."""
    # Without its article nothing would be left of the choice "A", nor without punctuation of "?".
    for normal in (normalise_text, _lower, str.strip):
        if wanted := normal(gold):
            return normal(answer), wanted
    return answer.strip(), ""


def _tokens(answer: str, gold: str) -> tuple[list[str], list[str]]:
    """The words of both, as ``_comparable`` has them, and their numbers, which would lose their points and signs."""
    texts = [APART.sub(" ", DOTTED.sub(" ", with_plain_signs(text))) for text in (answer, gold)]
    words = _comparable(texts[0], texts[1]) if re.search(r"\w", texts[1]) else ("", "")
    numbers = [[*map(str, _numbers(text)), *DOTTED.findall(text)] for text in (answer, gold)]
    return [*words[0].split(), *numbers[0]], [*words[1].split(), *numbers[1]]


def _lower(text: str) -> str:
    return " ".join(text.lower().translate(PUNCTUATION).split())


def _numbers(text: str) -> list[float | None]:
    return [number_of(each) for each in APART.findall(with_plain_signs(text))]


def answer_key(text: str) -> str | None:
    """A digest that is equal for answers that mean the same; ``None`` for a text without an answer.

    A number alone is compared as a number. Of other texts, their normalised forms and the numbers in them are: SQuAD's
    removes decimal points and signs, after which 1.5 would equal 15.
    """
    if not text.strip():
        return None
    alone = number_of(text)
    if alone is not None:
        # A large exponent is infinite as a float, and -0 equals 0.
        return digest("number", alone + 0.0 if math.isfinite(alone) else str(alone))
    words, _ = _comparable(text, text)
    numbers = [str(number_of(each)) for each in NUMBER.findall(with_plain_signs(text))]
    return digest("text", words, [*numbers, *DOTTED.findall(text)])


def f1(answer: Sequence[str], gold: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, as SQuAD counts them; 1 for two empty texts."""
    if not answer or not gold:
        return float(not answer and not gold)
    common = (Counter(answer) & Counter(gold)).total()
    return 2 * common / (len(answer) + len(gold))


def _golds(task: Task | None, path: str) -> list[str | float]:
    """The texts and numbers that a task has at a dotted path."""
    every = listed_at(task, path)
    return [each for each in every if isinstance(each, str | int | float) and not isinstance(each, bool) and each != ""]


def number_of(text: str | float) -> float | None:
    """A number, with commas between thousands, a currency or a per cent sign around it, also after its own sign."""
    plain = with_plain_signs(str(text).strip()).strip("$€£¥% ").removesuffix(".")
    if not re.fullmatch(NUMBER.pattern, plain):
        return None
    return float(plain.replace(",", ""))
