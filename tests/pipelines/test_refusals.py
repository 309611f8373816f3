"""Refusals are distinguished from reports that something did not work."""

from __future__ import annotations

import pytest

from agentmill.pipelines.refusals import is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, but I cannot assist you with this request.",
        "Sorry, I can't help with that.",
        "I am unable to help you with this.",
        "I cannot comply.",
        "I won't assist with making weapons.",
        "I must decline to do this.",
        "I have to respectfully decline.",
        "As an AI language model, I am not able to book flights.",
        "This goes against my guidelines.",
        "I'm not able to assist with that request.",
        "I'm sorry, but as an AI, I don't have the capability to order a pizza.",
        "I'm sorry, but I'm unable to perform external tasks like booking a hotel.",
        "Es tut mir leid, aber ich kann dir dabei nicht helfen.",
        "Ich kann Ihnen leider nicht dabei helfen.",
        "Diese Anfrage muss ich leider ablehnen.",
        "Je suis désolé, je ne peux pas vous aider.",
        "Je dois refuser cette demande.",
        "Lo siento, pero no puedo ayudarte con eso.",
        "No puedo ayudarte con esa solicitud.",
        "抱歉，我无法提供这方面的帮助。",
        "作为一个人工智能，我不能回答这个问题。",
    ],
)
def test_refusals(text: str) -> None:
    assert is_refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I'm sorry, the file cannot be found. Shall I look in another folder?",
        "I cannot find the file.",
        "I can't open the door, so I go left.",
        "I am sorry for the wait. Your flight is booked.",
        "I can help with that.",
        "We do not have the ability to store more rows, so I split the table.",
        "The user cannot help it.",
        "We won't support Python 3.9 any more.",
        "Ich kann die Datei nicht finden.",
        "Ich kann Ihnen dabei helfen.",
        "Je ne peux pas ouvrir la porte.",
        "No puedo abrir el archivo.",
        "抱歉，找不到这个文件。",
        "All done. " * 40 + "I can't help with that.",
    ],
)
def test_other_messages(text: str) -> None:
    assert not is_refusal(text)
