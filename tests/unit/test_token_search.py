"""The search for tokens takes a time that grows with the text, not with its square."""

from __future__ import annotations

import time

import pytest
from kit.base import redact

MEGABYTE = 1 << 20
TEXTS = {
    "base64 of JSON": "eyJ" + "a" * MEGABYTE,
    "base64 of JSON, often": "eyJa." * (MEGABYTE // 5),
    "a long scheme": "a" * MEGABYTE + "://",
    "schemes": "a://" * (MEGABYTE // 4),
    "addresses": "a://b:" * (MEGABYTE // 6),
    "dashes": "sk-" + "-" * MEGABYTE,
    "letters": "sk-" + "a" * MEGABYTE,
    "parts": "sk-" + "a-" * (MEGABYTE // 2),
    "openers": "sk-hf_" * (MEGABYTE // 6),
    "openers with spaces": " sk-a1" * (MEGABYTE // 6),
    "private keys": "-----BEGIN PRIVATE KEY" * (MEGABYTE // 22),
    "capitals": "PRIVATE KEY-----BEGIN " + "A" * MEGABYTE,
    "prefixes": " hf_ ghp_ xox nvapi- glpat-" * (MEGABYTE // 27),
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_megabyte_takes_no_time(text: str) -> None:
    redact.kind("hf_ ghp_ sk- wandb_v AKIA xox nvapi- glpat- eyJ PRIVATE KEY ://")  # the expressions are made
    seconds = []
    for _ in range(3):  # the machine may be busy
        start = time.process_time()
        redact.kind(text)
        redact.hide_tokens(text)
        seconds.append(time.process_time() - start)
    assert min(seconds) < 2  # for both; an expression that goes back over what it has read takes minutes


@pytest.mark.parametrize("text", ["KEY" * 100_000, "A" * 300_000, "A_KEY" + " " * 300_000, "KEY='" * 60_000])
def test_neither_does_a_line_of_kit_diff(text: str) -> None:
    start = time.process_time()
    redact.hide_value(text)
    assert time.process_time() - start < 2


def test_a_token_behind_a_long_text_is_found() -> None:
    token = "hf" + "_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
    assert redact.kind("eyJ" + "a" * MEGABYTE + " " + token) == "a Hugging Face token"
    assert redact.kind("x" * MEGABYTE + "https://me:" + "s3cret@example.org") == "an address with a password"
    assert redact.kind("-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\n") == "a private key"
