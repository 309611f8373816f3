"""What runs tests inside a sandbox: those that are defined at the top of their code, as pytest and unittest find them.

It is on the standard library alone. Its text is executed in the session, after the code that is tested and in names of
its own, so that nothing which that code calls by the name of a builtin changes it.
"""

from __future__ import annotations

import ast
import inspect
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

NO_TESTS, NEED_PYTEST = "no_tests", "tests_need_pytest"
"""Why tests cannot be run."""

_before: dict[str, object] = {}


def begin(text: str) -> str:
    """Note what is defined before the tests in ``text`` are; returns why these cannot be run, or an empty text."""
    if "unittest" in text:
        import unittest

        # It would end the session, and also find tests that the agent wrote.
        vars(unittest)["main"] = lambda *_, **__: None
    _before.update(_names())
    nodes = list(ast.walk(_parsed(text)))
    imported = [each.name for node in nodes if isinstance(node, ast.Import) for each in node.names]
    imported += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return NEED_PYTEST if any(name.partition(".")[0] == "pytest" for name in imported) else ""


def run(text: str, word: str) -> list[str]:
    """Run what the tests in ``text`` have defined since ``begin``; raises what the first that fails raises.

    Returns the word, and why there was something that could not be run, or an empty text.
    """
    tree = _parsed(text)
    called, used = _called(tree), {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found = [(name, value) for name, value in _names().items() if _before.get(name) is not value]
    tests: list[tuple[str, Callable[[], object]]] = []
    for name, value in found:
        if getattr(value, "__module__", None) != "__main__":
            continue
        if isinstance(value, type) and "unittest" in sys.modules and _is_case(value):
            tests.append((name, lambda case=value: _run_case(case)))  # type: ignore[misc]
        elif isinstance(value, type) and name.startswith("Test"):
            if any(hasattr(value, each) for each in ("setup_method", "teardown_method", "setup_class")):
                return [word, NEED_PYTEST]
            tests += [(each, getattr(value(), each)) for each in dir(value) if each.startswith("test")]
        elif inspect.isfunction(value) and name.startswith("test") and name not in called:
            tests.append((name, value))
    for name, test in tests:
        if _needs_pytest(test):
            if name in used:  # a function that other tests call
                continue
            return [word, NEED_PYTEST]
        test()
    return [word, NO_TESTS if not tests and _only_defines(tree) else ""]


def _names() -> dict[str, object]:
    return dict(vars(sys.modules["__main__"]))


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def _called(tree: ast.Module) -> set[str]:
    """The functions that the code calls where it does not define something."""
    outside = [each for each in tree.body if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
    calls = [node.func for each in outside for node in ast.walk(each) if isinstance(node, ast.Call)]
    return {each.id for each in calls if isinstance(each, ast.Name)}


def _only_defines(tree: ast.Module) -> bool:
    """Whether the code does nothing but to import and to define; empty code is broken code, which has failed."""
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return bool(tree.body) and all(
        isinstance(each, defining)
        or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
        or (isinstance(each, ast.Assign) and not any(isinstance(node, ast.Call) for node in ast.walk(each)))
        for each in tree.body
    )


def _needs_pytest(test: Callable[[], object]) -> bool:
    """Whether a test is a coroutine or has parameters without defaults, which only pytest could give."""
    if inspect.iscoroutinefunction(test):
        return True
    given = inspect.signature(test).parameters.values()
    return any(
        each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in given
    )


def _is_case(value: type) -> bool:
    import unittest

    return issubclass(value, unittest.TestCase)


def _run_case(case: type) -> None:
    """Run a class of tests. Raises ``AssertionError`` with the end of the first traceback."""
    import unittest

    result = unittest.TestResult()
    unittest.TestSuite([unittest.defaultTestLoader.loadTestsFromTestCase(case)]).run(result)
    for _, trace in [*result.errors, *result.failures]:
        raise AssertionError(trace.strip().splitlines()[-1])
    if result.unexpectedSuccesses:
        raise AssertionError("unexpected success")
