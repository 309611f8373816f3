"""Worlds that are acted upon: counters, locks, scales and orders to be served."""

from __future__ import annotations

import random

from agentmill.synthesis.environments.codegym.problem import Problem, ProblemTool
from agentmill.synthesis.generators.codegym_procedural.draft import INTEGER, INTEGERS, STRING, Made, told_in
from agentmill.synthesis.generators.codegym_procedural.themes import Theme

_OPERATIONS = {
    "double": ("Doubles the number.", "value * 2"),
    "add_three": ("Adds 3 to the number.", "value + 3"),
    "take_one": ("Takes 1 from the number.", "value - 1"),
    "halve": ("Halves the number, rounded down.", "value // 2"),
    "square": ("Multiplies the number with itself.", "value * value"),
    "mirror": ("Takes the number from 20.", "20 - value"),
    "add_seven": ("Adds 7 to the number.", "value + 7"),
}


def counter(theme: Theme, chance: random.Random) -> Made:
    """A number that is hidden at first, and buttons that change it; a goal is to be reached."""
    names = sorted(chance.sample(list(_OPERATIONS), 3))
    functions = "".join(
        f"def {name}(state):\n    value = state['value']\n    changed = {_OPERATIONS[name][1]}\n"
        "    if not -99 <= changed <= 999:\n        raise Refused('The number would leave the display.')\n"
        "    state['value'] = changed\n    return 'done'\n"
        for name in names
    )
    after = "{" + ", ".join(f"'{name}': {_OPERATIONS[name][1]}" for name in names) + "}"
    problem = Problem(
        about=f"{theme.about} A machine shows a number, and has buttons that change it. It stays between -99 and 999.",
        question="Make the machine show $goal, and say that it is done.",
        tools=(ProblemTool("show", "The number."), *(ProblemTool(name, _OPERATIONS[name][0]) for name in names)),
        instances="def draw(chance, size):\n    start = value = chance.randint(2, 30)\n"
        "    for number in range(60):\n"
        f"        choices = [each for each in {after}.values() if -99 <= each <= 999 and each != start]\n"
        "        value = chance.choice(choices) if choices else value\n"
        "        if number >= size and value != start:\n            break\n"
        "    return {'value': start, 'goal': value}\ndef given(instance):\n    return {'goal': instance['goal']}\n",
        code=f"def show(state):\n    return state['value']\n{functions}"
        "def outcome(state):\n    return state['value']\n",
        solution="def solve(instance):\n    return instance['goal']\n",
        oracle="def oracle(call, given):\n    start = call('show')\n    plans, ring = {start: []}, [start]\n"
        f"    for value in ring:\n        if value == given['goal']:\n            break\n"
        f"        for name, changed in {after}.items():\n"
        "            if changed not in plans and -99 <= changed <= 999:\n"
        "                plans[changed] = [*plans[value], name]\n                ring.append(changed)\n"
        "    for name in plans[given['goal']]:\n        call(name)\n",
    )
    return told_in(problem, theme), ["counter", *names]


_LOCK_FEEDBACK = {
    "right": (
        "How many places are right.",
        "sum(one == two for one, two in zip(code, guess))",
    ),
    "right_and_present": (
        "How many places are right, and how many further letters stand in another place.",
        "[right := sum(one == two for one, two in zip(code, guess)), "
        "sum(min(code.count(each), guess.count(each)) for each in 'abcd') - right]",
    ),
    "beginning": (
        "How many letters are right from the front on, up to the first wrong one.",
        "next((place for place in range(len(code)) if code[place] != guess[place]), len(code))",
    ),
    "alphabet": (
        "Whether the hidden word comes before, after or is the same in the alphabet.",
        "'before' if code < guess else 'after' if code > guess else 'same'",
    ),
}


def lock(theme: Theme, chance: random.Random) -> Made:
    """A hidden word that is narrowed down by guesses."""
    name = chance.choice(list(_LOCK_FEEDBACK))
    letters = chance.choice((3, 4))
    told, feedback = _LOCK_FEEDBACK[name]
    problem = Problem(
        about=f"{theme.about} A lock hides a word of {letters} letters, each of them a, b, c or d.",
        question="Which word does the lock hide?",
        tools=(ProblemTool("try_word", told, {"guess": {**STRING, "minLength": letters, "maxLength": letters}}),),
        instances="def draw(chance, size):\n"
        f"    return {{'code': ''.join(chance.choice('abcd') for _ in range({letters}))}}\n"
        "def given(instance):\n    return {}\n",
        code=f"def try_word(state, guess):\n    if len(guess) != {letters} or set(guess) - set('abcd'):\n"
        f"        raise Refused('That is no such word.')\n    code = state['code']\n    return {feedback}\n",
        solution="def solve(instance):\n    return instance['code']\n",
        oracle="import itertools\ndef _told(code, guess):\n"
        f"    return {feedback}\n"
        "def oracle(call, given):\n"
        f"    left = [''.join(word) for word in itertools.product('abcd', repeat={letters})]\n"
        "    while len(left) > 1:\n        guess = left[len(left) // 2]\n        said = call('try_word', guess=guess)\n"
        "        left = [code for code in left if _told(code, guess) == said]\n    return left[0]\n",
        answer=STRING,
    )
    return told_in(problem, theme), ["lock", name, str(letters)]


def scales(theme: Theme, chance: random.Random) -> Made:
    """One thing that differs from the others, to be found with a pair of scales."""
    del chance
    problem = Problem(
        about=f"{theme.about} You have a pair of scales. The NOUNS are numbered from 0. One is heavier than "
        "all others, which weigh the same.",
        question="Which number has the one of the $count NOUNS that is heavier?",
        tools=(
            ProblemTool(
                "weigh",
                "Puts NOUNS, as many on each side, on the scales; says which side is heavier: left, right or none.",
                {"left": INTEGERS, "right": INTEGERS},
            ),
        ),
        instances="def draw(chance, size):\n    count = 2 * size + 1\n    odd = chance.randrange(count)\n"
        "    return {'weights': [10 + (place == odd) for place in range(count)]}\n"
        "def given(instance):\n    return {'count': len(instance['weights'])}\n",
        code="""
def weigh(state, left, right):
    both = [*left, *right]
    if len(left) != len(right) or len(set(both)) != len(both):
        raise Refused("There must be as many on each side, and none twice.")
    if not all(0 <= place < len(state["weights"]) for place in both):
        raise Refused("There is no such NOUN.")
    one, two = (sum(state["weights"][place] for place in side) for side in (left, right))
    return "left" if one > two else "right" if two > one else "none"
""",
        solution="def solve(instance):\n    return instance['weights'].index(max(instance['weights']))\n",
        oracle="""
def oracle(call, given):
    left = list(range(given["count"]))
    while len(left) > 1:
        third = (len(left) + 1) // 3
        one, two, rest = left[:third], left[third : 2 * third], left[2 * third :]
        said = call("weigh", left=one, right=two)
        left = one if said == "left" else two if said == "right" else rest
    return left[0]
""",
        answer=INTEGER,
        metered=("weigh",),
    )
    return told_in(problem, theme), ["scales"]


_SERVING = {
    "first_come": ("in the order in which they come", "waiting"),
    "smallest": (
        "the smallest first; of equal ones the one that came first",
        "sorted(waiting, key=lambda o: o['amount'])",
    ),
    "largest": (
        "the largest first; of equal ones the one that came first",
        "sorted(waiting, key=lambda o: -o['amount'])",
    ),
    "urgent": (
        "the most urgent first, 1 is the most urgent; of equal ones the one that came first",
        "sorted(waiting, key=lambda o: o['urgency'])",
    ),
}


_SERVING_TOOLS = """
def _find(state, name):
    for each in state["waiting"]:
        if each["name"] == name:
            return each
    raise Refused(f"There is no order {name}.")
def orders(state):
    return [each["name"] for each in state["waiting"]]
def order(state, name):
    found = _find(state, name)
    return {"amount": found["amount"], "urgency": found["urgency"]}
def stock(state):
    return state["stock"]
def serve(state, name, amount):
    _find(state, name)
    if name in state["served"]:
        raise Refused(f"{name} was served already.")
    if not 0 <= amount <= state["stock"]:
        raise Refused("There is not so much left.")
    state["served"][name] = amount
    state["stock"] -= amount
    return "served"
def outcome(state):
    return state["served"]
"""


def orders(theme: Theme, chance: random.Random) -> Made:
    """Orders to be served from a stock by a rule; what counts is what was done with each."""
    name = chance.choice(list(_SERVING))
    partly = chance.choice((False, True))
    told, ranked = _SERVING[name]
    rule = "gets what is left, if that is not all it wants" if partly else "is turned down if not all it wants is left"
    taken = "min(order['amount'], stock)" if partly else "order['amount'] if order['amount'] <= stock else 0"
    problem = Problem(
        about=f"{theme.about} You hand out NOUNS to orders. An order {rule}.",
        question=f"Serve all orders, {told}, and say that it is done. Those that get nothing are served with 0.",
        tools=(
            ProblemTool("orders", "The names of the orders, in the order in which they came."),
            ProblemTool("order", "What an order wants, and how urgent it is.", {"name": STRING}),
            ProblemTool("stock", "How many NOUNS are left."),
            ProblemTool("serve", "Gives NOUNS to an order, once.", {"name": STRING, "amount": INTEGER}),
        ),
        instances="def draw(chance, size):\n    count = max(2, size // 2)\n"
        "    waiting = [{'name': f'{letter}{chance.randint(1, 9)}', 'amount': chance.randint(1, 9),\n"
        "        'urgency': chance.randint(1, 3)} for letter in chance.sample('ABCDEFGHKLMN', count)]\n"
        "    total = sum(order['amount'] for order in waiting)\n"
        "    return {'waiting': waiting, 'stock': chance.randint(total // 3 + 1, total - 1), 'served': {}}\n"
        "def given(instance):\n    return {}\n",
        code=_SERVING_TOOLS,
        solution="def solve(instance):\n    waiting, stock, served = instance['waiting'], instance['stock'], {}\n"
        f"    for order in {ranked}:\n        served[order['name']] = {taken}\n"
        "        stock -= served[order['name']]\n    return served\n",
        oracle="def oracle(call, given):\n    waiting, stock = [], call('stock')\n    for name in call('orders'):\n"
        "        waiting.append({'name': name, **call('order', name=name)})\n"
        f"    for order in {ranked}:\n        amount = {taken}\n"
        "        call('serve', name=order['name'], amount=amount)\n        stock -= amount\n",
    )
    return told_in(problem, theme), ["orders", name, "partly" if partly else "whole"]
