"""Values that look like secrets are refused where every record would show them, and shown in no message; little else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kit.base import redact

# Put together here, so that nobody who searches the repository for tokens finds one.
LIKE = {
    "a Hugging Face token": ["hf" + "_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"],
    "a GitHub token": ["ghp" + "_" + "a1B2" * 9, "gho" + "_" + "a1B2" * 9, "github" + "_pat_" + "11ABCDEFG0" * 4],
    "an API key": [
        "sk" + "-" + "a1B2c3D4" * 6,
        "sk" + "-proj-" + "a1B2c3D4_a1B2c3D4-" * 4,
        "sk" + "-ant-api03-" + "a1B2c3D4" * 10,
        "sk" + "-or-v1-" + "0a1b" * 16,
    ],
    "a key of Weights & Biases": ["wandb" + "_v1_" + "a1B2" * 12],
    "a key of AWS": ["AKIA" + "IOSFODNN7EXAMPLE"],
    "a Slack token": ["xox" + "b-123456789012-abcdefABCDEF", "xox" + "p-123456789012-abcdefABCDEF"],
    "the address of a web hook": [
        "https://hooks.slack" + ".com/services/T00000000/B00000000/" + "aBcDeFgH" * 3,
        "https://discord" + ".com/api/webhooks/123456789012345678/" + "aBc-D_FgH" * 7,
    ],
    "a key of NVIDIA's": ["nvapi" + "-" + "a1B2c3_-" * 8],
    "a GitLab token": ["glpat" + "-" + "a1B2c3_-" * 3],
    "a Docker token": ["dckr" + "_pat_" + "a1B2c3_-" * 4],
    "a PyPI token": ["pypi" + "-AgEIcHlwaS5vcmcC" + "a1B2c3_-" * 16],
    "an npm token": ["npm" + "_" + "a1B2c3" * 6],
    "a key of Google's": ["AIza" + "SyA" + "a1B2c3_-" * 4],
    "a JSON web token": ["eyJ" + "hbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0In0." + "a1B2c3_-" * 4],
    "a private key": ["-----BEGIN " + kind + "PRIVATE KEY-----\nMIIE" for kind in ("", "RSA ", "OPENSSH ", "EC ")],
    "an address with a password": ["https://me:s3cret@example.org/x", "postgresql+psycopg://me:s3cret@db:5432/x", "redis://:s3cret@cache"],
}
HARMLESS = [
    "hf_hub", "hf_transfer", "sk-learn", "sk-learn-with-a-very-long-name-of-experiment", "sk-learn-2024-10-05-experiment-1", "task-a1B2c3D4a1B2c3D4a1B2c3D4",
    "ghp_", "AKIA", "MAKIA0123456789ABCDEF", "xoxo-hugs-and-kisses", "eyJ", "eyJhbGciOi", "-----BEGIN CERTIFICATE-----", "d0be2dc421be4fcd0172e5afceea3970e2f3d940",
    "https://example.org:8080/a@b", "https://me@example.org", "https://me:${PASSWORD}@example.org", "https://{user}:{password}@example.org", "https://u:<password>@x",
    "https://me:***@example.org", "https://hooks.slack.com/", "https://example.org/api/webhooks/list", "tcp://10.0.0.1:23456", "s3://bucket/key:1@2", "git@github.com:owner/name", "docker://nvcr.io#nvidia/pytorch:25.09-py3",
    "/data/hf_abcdefghijklmnopqrstuvwxyz", "npm_config_registry", "pypi-server", "pypi-mirror-of-the-site", "dckr_pat_", "AIzawa", "checkpoint-sk-000123", "a" * 200, "0" * 64, "lr=1e-3,wd=0.1",
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in LIKE.items() for text in texts])
def test_each_kind_is_known_alone_and_inside_other_text_and_is_hidden(kind: str, text: str) -> None:
    for whole in (text, f"--token={text}", f"before {text}"):
        assert redact.kind(whole) == kind
        end = "s3cret" if "://" in text else text[-8:]
        assert end not in redact.hide_tokens(f"kit: {whole}")


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_is_left_alone(text: str) -> None:
    assert redact.kind(text, "NAME") is None
    assert redact.hide_tokens(text) == text


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "MY_TOKEN", "API_KEY", "TOKEN"])
def test_forty_digits_are_a_key_where_the_name_says_so(name: str) -> None:
    digits = "d0be2dc421be4fcd0172e5afceea3970e2f3d940"
    assert redact.kind(digits, name) == "a key"
    for other in ("GIT_COMMIT", "REVISION", "KEYBOARD", "TOKENIZER"):
        assert redact.kind(digits, other) is None


def test_a_job_is_refused_with_the_line_and_without_the_value(tmp_path: Path, kit) -> None:
    (tmp_path / "train.py").touch()
    token = LIKE["a Hugging Face token"][0]
    address = LIKE["an address with a password"][0]
    job = f'command: [train.py, "--token={token}"]\nenv:\n  LR: "0.1"\n  HF_TOKEN: {token}\nslurm:\n  comment: {address}\nsweep: {{x: [{token}]}}\n'
    (tmp_path / "job.yaml").write_text(job)
    words = ["--env", f"WANDB_API_KEY={'0a' * 20}", "--slurm", f"export=X={token}", "--dry-run", "--", token]
    done = kit("submit", "job.yaml", *words, check=False)
    assert done.returncode == 2 and done.stdout == ""
    problems = [line for line in done.stderr.splitlines() if line.startswith("kit: ") and "looks like" in line]
    shown = "which process lists and records of the job would show"
    assert problems == [
        "kit: --env: the value of WANDB_API_KEY looks like a key, and would be in env.sh and in run.json",
        f"kit: --slurm: the option export looks like a Hugging Face token, {shown}",
        f"kit: arguments after --: an argument looks like a Hugging Face token, {shown}",
        f"kit: job.yaml:1: an argument looks like a Hugging Face token, {shown}",
        "kit: job.yaml:4: the value of HF_TOKEN looks like a Hugging Face token, and would be in env.sh and in run.json",
        f"kit: job.yaml:6: the option comment looks like an address with a password, {shown}",
        f"kit: job.yaml:7: a value of the sweep's x looks like a Hugging Face token, {shown}",
    ]
    assert "  fix: take the value out, and write `secrets: [HF_TOKEN]`: kit submit reads it from your environment (docs/secrets.md)\n" in done.stderr
    assert token not in done.stderr and "s3cret" not in done.stderr and "0a0a" not in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "warns"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", True),
        ("DB_PASSWORD", "hunter2", True),
        ("DB_PASSWORD", "correcthorse", True),
        ("DB_PASS", "hunter2", True),
        ("API_TOKEN", "1234567812340abcd", True),
        ("CACHE_KEY", "imagenet1k", False),
        ("SPECIAL_TOKEN_IDS", "abc123", False),
        ("NUM_KEY_VALUE_HEADS", "heads8x", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MAX_TOKENS", "2048", False),
        ("TOKENS_PER_BATCH", "0.5e6", False),
        ("TRAIN_TOKENS", "100billion1", False),
        ("KEY", "/etc/keys/key1", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", "keys/service-1.json", False),
        ("UCX_IB_PKEY", "0x8001", False),
        ("AUTH_URL", "https://auth1.example.org", False),
        ("AUTH_SERVER", "auth1.example.org:443", False),
        ("DB_PASSWORD", "vault:secret/db#password", False),
        ("SSH_KEY", "~/.ssh/id_ed25519", False),
        ("PASSWORD_FILE", "passwords/db1.txt", False),
        ("AWS_ACCESS_KEY_ID", "work-account-1", False),
        ("HF_TOKEN", "${HF_TOKEN_1}", False),
        ("MASK_TOKEN", "<mask_1>", False),
        ("PAD_TOKEN", "[PAD1234]", False),
        ("SORT_KEY", "accuracy", False),
        ("PRIMARY_KEY", "user_id_2024_0001", False),
        ("KEYPOINTS", "body_25b", False),
        ("USE_AUTH", "true", False),
        ("PASSES", "10", False),
        ("SEED", "hunter2", False),
    ],
)
def test_a_name_that_sounds_like_a_secret_gets_a_word_unless_its_value_is_a_setting(name: str, value: str, warns: bool, tmp_path: Path, kit) -> None:
    (tmp_path / "train.py").touch()
    option = f"--{name.lower().replace('_', '-')}"
    text = {"command": ["train.py", option, value, f"{option}={value}"], "env": {name: value}, "setup": f"export {name}='{value}'\ntool {option} {value}\n"}
    (tmp_path / "job.yaml").write_text(json.dumps(text))
    done = kit("submit", "job.yaml", "--dry-run", cwd=tmp_path, check=False)
    lines = [line for line in done.stderr.splitlines() if "may be a secret" in line]
    shown = "judging by its name, which process lists and records of the job would show"
    expected = [
        f"kit: job.yaml:1: warning: the value of {option} may be a secret, {shown}",
        f"kit: job.yaml:1: warning: the value of {name} may be a secret, judging by its name, and would be in env.sh and in run.json",
        f"kit: job.yaml:1: warning: the value of {name} may be a secret, {shown}",
    ]
    assert lines == expected * warns, done.stderr
    assert value not in done.stderr or not warns


def test_a_warning_shows_no_other_words_of_the_command_and_looks_into_lines_that_are_one_word(tmp_path: Path, kit) -> None:
    (tmp_path / "train.py").touch()
    lines = "curl -u me:hunter2 https://x/auth?x=abc123; DB_PASSWORD=hunter2 tool"
    (tmp_path / "job.yaml").write_text(json.dumps({"command": ["train.py", "--db-password=hunter2", "model-7b", "-c", lines]}))
    done = kit("submit", "job.yaml", "--dry-run", cwd=tmp_path, check=False)
    assert "hunter2" not in done.stderr
    assert [line.split(" may be")[0] for line in done.stderr.splitlines() if "may be a secret" in line] == [
        "kit: job.yaml:1: warning: the value of --db-password",
        "kit: job.yaml:1: warning: the value of DB_PASSWORD",
    ]


def test_the_option_that_reads_a_password_from_a_pipe_and_an_option_after_another_are_no_values(tmp_path: Path, kit) -> None:
    (tmp_path / "train.py").touch()
    setup = "docker login --username me --password-stdin nvcr.io <file\ntool --use-auth-token --model=gpt2\nDB_PASSWORD=`show db1`\n"
    (tmp_path / "job.yaml").write_text(json.dumps({"command": "train.py", "setup": setup}))
    assert "may be a secret" not in kit("submit", "job.yaml", "--dry-run", cwd=tmp_path, check=False).stderr


def test_forty_digits_are_refused_by_the_name_of_their_option_and_in_lines_of_bash(tmp_path: Path, kit) -> None:
    digits = "0a" * 20
    (tmp_path / "train.py").touch()
    job = {
        "command": ["train.py", "--wandb-key", digits, "--revision", digits, "--cache-key", digits],
        "setup": f"export WANDB_API_KEY={digits} GIT_COMMIT={digits}\n",
    }
    (tmp_path / "job.yaml").write_text(json.dumps(job))
    done = kit("submit", "job.yaml", "--dry-run", "--", f"--wandb_key={digits}", cwd=tmp_path, check=False)
    shown = "looks like a key, which process lists and records of the job would show"
    assert done.returncode == 2 and digits not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("kit: ")] == [
        f"kit: arguments after --: the value of --wandb_key {shown}",
        f"kit: job.yaml:1: the value of --wandb-key {shown}",
        f"kit: job.yaml:1: the value of WANDB_API_KEY {shown}",
    ]


def test_a_message_about_something_else_does_not_repeat_it_either(tmp_path: Path, kit) -> None:
    token = LIKE["a Hugging Face token"][0]
    (tmp_path / "train.py").touch()
    (tmp_path / "job.yaml").write_text(json.dumps({"command": "train.py", "nodes": token, "time": token}))
    done = kit("submit", "job.yaml", "--env", token, "--dry-run", check=False)
    assert done.returncode == 2
    assert "kit: job.yaml:1: nodes: expected a whole number of at least 1, not '(not shown)'\n" in done.stderr
    assert token not in done.stderr
