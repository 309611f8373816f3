"""Which addresses are asked through the proxy of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentmill.pipelines.serving.endpoints import Endpoint, check_endpoint
from agentmill.synthesis.policies.http_client import Client, proxy_for
from tests import fake_openai as fake
from tests.fake_openai import FakeOpenAi

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def no_other_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://model.example/v1", PROXY),
        ("http://model.example:8000/v1", PROXY),
        ("http://user:word@model.example:8000/v1", PROXY),
        ("http://inside.example:8000/v1", None),
        ("http://user:word@inside.example/v1", None),
        ("https://model.example/v1", None),
        ("http://127.0.0.1:8000/v1", None),
        ("http://localhost/v1", None),
        ("http://[::1]:8000/v1", None),
    ],
)
def test_this_machine_and_what_is_excepted_are_asked_directly(
    monkeypatch: pytest.MonkeyPatch, url: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "inside.example")
    assert proxy_for(url) == proxy


async def test_passwords_of_the_user_do_not_get_in_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password mine")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with FakeOpenAi([fake.text("a")]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        client = Client("http://model.example/v1", "secret", max_retries=0)
        answer = await client.post("/chat/completions", {"messages": []})
        await client.close()
    assert b'"content": "a"' in answer
    assert proxy.keys == ["secret"]


def test_an_endpoint_is_checked_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeOpenAi([]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        check_endpoint(Endpoint(base_url="http://model.example/v1", model=fake.MODEL), None)
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        check_endpoint(Endpoint(base_url=proxy.url, model=fake.MODEL), None)
