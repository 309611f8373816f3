"""The Python that runs in the sandbox besides the parts of a problem: it calls their functions and passes JSON on."""

SETTING = """
class Refused(Exception):
    pass
"""
COPY = """
import json as _json
def _copy(value):
    return _json.loads(_json.dumps(value, allow_nan=False))
"""
DRAWING = """
import random as _random
def _drawn(draws):
    instances = [_copy(draw(_random.Random(seed), size)) for seed, size in draws]
    return [[instance, given(_copy(instance))] for instance in instances]
"""
SOLVING = """
def _solved(instances):
    return [solve(instance) for instance in instances]
"""
ACTING = """
def _act(state, tool, arguments):
    try:
        result = globals()[tool](state, **arguments)
    except Refused as error:
        return {"refused": str(error)}
    return {"state": state, "result": result}
def _refused(state, calls):
    return ["refused" in _tried(_copy(state), *call) for call in calls]
def _tried(state, tool, arguments):
    try:
        return _copy(_act(state, tool, arguments))
    except Exception:
        return {"refused": ""}
def _followed(instances, runs):
    states, wrong = list(instances), []
    for step in range(max(map(len, runs), default=0)):
        for number, calls in enumerate(runs):
            if step < len(calls):
                tool, arguments, result = calls[step]
                acted = _tried(_copy(states[number]), tool, arguments)
                if "refused" in acted or acted["result"] != result:
                    wrong.append(f"call {step + 1}, {tool}({arguments}): {result!r} for the oracle, not for an agent")
                states[number] = acted.get("state", states[number])
    return {"wrong": wrong[:3], "states": states}
"""
PLAYING = """
class _Endless(Exception):
    pass
def _played(instances, givens, most):
    return [_play(instance, given, most) for instance, given in zip(instances, givens)]
def _exchanged(instances, givens, most):
    return [_attempt(instance, given, most) for instance, given in zip(instances[1:] + instances[:1], givens)]
def _attempt(instance, given, most):
    try:
        return _copy([_play(instance, given, most)["answer"]])
    except Exception:
        return []
def _play(state, given, most):
    calls = []
    def call(tool, /, **arguments):
        if len(calls) == most:
            raise _Endless(f"the oracle does not end after {most} calls")
        if tool not in _TOOLS:
            raise NameError(f"there is no tool {tool!r}")
        arguments = _copy(arguments)
        calls.append([tool, arguments, None])
        calls[-1][2] = result = _copy(globals()[tool](state, **_copy(arguments)))
        return _copy(result)
    try:
        answer = oracle(call, _copy(given))
        return {"calls": calls, "answer": answer, "outcome": outcome(state) if "outcome" in globals() else None}
    except _Endless as error:
        return {"endless": str(error)}
"""
RETRACING = """
class _Strayed(Exception):
    pass
def _retraced(givens, runs):
    return [_retrace(given, calls) for given, calls in zip(givens, runs)]
def _retrace(given, calls):
    left = iter(calls)
    def call(tool, /, **arguments):
        expected = next(left, None)
        if expected is None or expected[:2] != [tool, _copy(arguments)]:
            raise _Strayed(f"{tool}({arguments}) was not called before")
        return _copy(expected[2])
    try:
        return {"answer": oracle(call, _copy(given)), "left": len(list(left))}
    except _Strayed as error:
        return {"strayed": str(error)}
"""
