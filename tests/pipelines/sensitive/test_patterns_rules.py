"""Planted secrets: every one that a scan by patterns can be asked for is found; what it is not asked for is listed."""

from __future__ import annotations

import json
import os
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from agentmill.pipelines.sensitive.patterns import RULES, SECRETS, secrets_in

chance = random.Random(7)
LETTERS = string.ascii_letters + string.digits


def some(n: int, letters: str = LETTERS) -> str:
    return "".join(chance.choices(letters, k=n))


def lower(n: int) -> str:
    return some(n, "0123456789abcdef")


def upper(n: int) -> str:
    return some(n, string.ascii_uppercase + "234567")


def uuid() -> str:
    return "-".join(lower(n) for n in (8, 4, 4, 4, 12))


RULED = {
    "airtable_api_key": f"pat{some(14)}.{lower(64)}",
    "alibaba_access_key_id": f"LTAI{some(20)}",
    "amazon_bedrock_api_key": f"ABSK{some(60)}",
    "atlassian_pat_token": f"ATATT3xFfGF0{some(160)}=0A1B2C3D",
    "aws_appsync_graphql_api_key": f"da2-{some(26, 'abcdef0123456789')}",
    "aws_mws_key": f"amzn.mws.{uuid()}",
    "azure_secret_value": f"{some(3)}8Q~{some(34)}",
    "azure_storage_account_key": f"{some(52)}JQQJ99{some(26)}",
    "bitbucket_app_password": f"ATBB{some(24)}0A1B2C3D",
    "bitbucket_http_access_token": f"BBDC-MDE0{some(40)}",
    "bitbucket_repository_access_token": f"ATCTT3xFfGN0{some(160)}=0A1B2C3D",
    "brevo_api_key": f"xkeysib-{lower(64)}-{some(16)}",
    "circleci_personal_api_token": f"CCIPAT_{some(22)}_{lower(40)}",
    "clojars_deploy_token": f"CLOJARS_{lower(60)}",
    "cloudflare_api_token": f"cfut_{some(40)}{lower(8)}",
    "contentful_credentials": f"CFPAT-{some(43)}",
    "defined_networking_api_key": f"dnkey-{upper(26)}-{upper(52)}",
    "digital_ocean_token": f"dop_v1_{lower(64)}",
    "discord_bot_token": f"MTE0{some(22)}.{some(6)}.{some(38)}",
    "discord_webhook": f"https://discord.com/api/webhooks/{some(18, string.digits)}/{some(68)}",
    "docker_access_token": f"dckr_pat_{some(27)}",
    "docker_swarm_key": f"SWMKEY-1-{some(43)}",
    "docker_swarm_token": f"SWMTKN-1-{lower(50)}-{lower(25)}",
    "doppler_api_key": f"dp.pt.{some(43)}",
    "dynatrace_api_token": f"dt0c01.{upper(24)}.{upper(64)}",
    "figma_personal_access_token": f"figd_{some(40)}",
    "gitlab_prefix_token": f"glpat-{some(20)}",
    "grafana_access_policy_token": f"glc_eyJ{some(100)}",
    "grafana_service_account_token": f"glsa_{some(32)}_{lower(8)}",
    "hashicorp_terraform_token": f"{some(14)}.atlasv1.{some(67)}",
    "hashicorp_vault_token": f"hvs.{some(90)}",
    "heroku_credentials": f"HRKU-{uuid()}",
    "instagram_access_token": f"IGQVJ{some(130)}",
    "jfrog_token": f"AKCp{some(69)}",
    "linear_api_key": f"lin_api_{some(40)}",
    "llama_api_key": f"llx-{some(48)}",
    "mailchimp_api_key": f"{lower(32)}-us12",
    "mailgun_api_key": f"key-{lower(32)}",
    "netlify_token": f"nfp_{some(36)}",
    "newrelic_credentials": f"NRAK-{upper(27)}",
    "notion_integration_token": f"ntn_{some(9, string.digits)}{some(36)}",
    "nuget_api_key": f"oy2{lower(43)}",
    "nylas_api_key": f"nyk_v0_{some(64)}",
    "one_password_account_token": f"ops_eyJ{some(200)}",
    "openai_token": f"sk-{some(20)}T3BlbkFJ{some(20)}",
    "paserk_keys": f"k4.local.{some(43)}",
    "paypal_braintree_access_token": f"access_token$production${lower(16)}${lower(32)}",
    "planetscale_credentials": f"pscale_tkn_{some(43)}",
    "posthog_credentials": f"phx_{some(43)}",
    "postman_credentials": f"PMAK-{lower(24)}-{lower(34)}",
    "pulumi_personal_access_token": f"pul-{lower(40)}",
    "riot_games_api_key": f"RGAPI-{uuid()}",
    "rubygems_api_key": f"rubygems_{lower(48)}",
    "sentry_organization_auth_token": f"sntrys_eyJ{some(120)}",
    "sentry_user_auth_token": f"sntryu_{lower(64)}",
    "shopify_token": f"shpat_{lower(32)}",
    "slack_webhook": f"https://hooks.slack.com/services/T{upper(9)}/B{upper(9)}/{some(24)}",
    "sonarqube_credentials": f"sqp_{lower(40)}",
    "sourcegraph_credentials": f"sgp_{lower(40)}",
    "square_credentials": f"sq0atp-{some(22)}",
    "supabase_credentials": f"sbp_{lower(40)}",
    "tailscale_credentials": f"tskey-auth-{some(17)}-{some(32)}",
    "tavily_api_key": f"tvly-{some(32)}",
    "telegram_bot_api_token": f"{some(10, '123456789')}:{some(35)}",
    "twilio_credentials": f"SK{lower(32)}",
    "vercel_token": f"vcp_{some(56)}",
    "wakatime_api_key": f"waka_{uuid()}",
    "wundergraph_api_key": f"cosmo_{lower(32)}",
}
"""One secret for every rule of the rule set."""

UNSEEN = {
    "a password in a sentence": "the password of jane is hunter2",
    "a password as a value": "password: correct horse battery staple",
    "a password in a configuration": "DB_PASSWORD=tr0ub4dor",
    "words of a wallet": "witch collapse practice feed shame open despair creek road again ice least",
    "a number of a card": "4111 1111 1111 1111",
    "a secret without a name": f"the key: {lower(32)}",
    "base64 twice": "V2pKb2QxZ3laRUpPUkU1Q1RrUk9RazVFVGtKT1JFNUNUa1JPUWs1RVRrSk9SRTVDVGtST1FrNUVUa0k9",
    "letters turned by 13": "tuc_nO3qnO3qnO3qnO3qnO3qnO3qnO3qnO3q",
    "a token written backwards": "d3Bad3Bad3Bad3Bad3Bad3Bad3Bad3Bad3Ba_phg",
    "pieces that a program joins": "'ghp_' + 'aB3d' * 9",
}
"""What is not looked for, as docs/publishing.md says."""


def texts_in(value: Any) -> Iterator[str]:
    """The texts of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from texts_in(each)


@pytest.mark.parametrize("kind", sorted(RULED))
def test_a_token_of_every_rule_is_found_by_its_rule(kind: str) -> None:
    secret = RULED[kind]
    texts = pl.Series(["nothing", f"a {secret} b", json.dumps({"x": f"\n{secret}\n"}), f"x='{secret}'", secret])
    assert secrets_in(texts)[kind].to_list() == [False, True, True, True, True]


def test_every_rule_has_a_planted_token_and_no_rule_repeats_a_pattern_of_ours() -> None:
    assert set(RULED) == set(RULES)
    assert not set(RULES) & set(SECRETS)


@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_what_documentation_says_is_not_looked_for_is_not_found(name: str) -> None:
    assert secrets_in(pl.Series([UNSEEN[name]])) == {}


def test_what_stands_for_a_token_is_none() -> None:
    texts = [
        "glpat-your-access-token-here",
        "dop_v1_" + "x" * 64,
        "tvly-YOUR_API_KEY_FROM_THE_DASHBOARD_OF_IT",
        "figd_" + "placeholder_of_forty_letters_in_a_docume",
        "vault: hvs.token, dp.pt.name, k1.local.host, sq0atp, SK-32",
    ]
    assert secrets_in(pl.Series(texts)) == {}


def test_ordinary_records_hold_no_secret() -> None:
    root = os.environ.get("AGENTMILL_SAMPLES")
    if root is None:
        pytest.skip("AGENTMILL_SAMPLES names no folder of sample records")
    found = []
    for path in sorted(each for each in Path(root).rglob("*") if each.suffix in (".json", ".jsonl", ".traj")):
        text = path.read_text(encoding="utf-8")
        for document in text.splitlines() if path.suffix == ".jsonl" else [text]:
            found += [each for each in texts_in(json.loads(document)) if each]
    assert len(found) > 1000
    assert secrets_in(pl.Series(found)) == {}
