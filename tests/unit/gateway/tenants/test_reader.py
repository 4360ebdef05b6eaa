"""A tenants file is read strictly, and every refusal names file, line, field and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.tenants.model import ApiKey, Limits, PriorityClass, Rate, Tenant
from gateway.tenants.reader import KEYS_MAX, TENANTS_BYTES_MAX, read_tenants
from mesh.document import DocumentError

EXAMPLE = Path(__file__).parents[4] / "docs" / "tenants.example.yaml"
DIGEST = "ab" * 32


def file_with(*lines: str) -> bytes:
    body = "\n".join(f"    {line}" for line in lines)
    return f"format: 1\ntenants:\n  acme:\n{body}\n".encode()


def test_the_example_of_the_documentation_is_read() -> None:
    """What docs/operations.md shows is a tenants file, and means what it says there."""
    book = read_tenants(EXAMPLE.read_bytes(), EXAMPLE.name)
    acme, trial = book.tenant("acme"), book.tenant("trial")
    assert [(key.tenant, key.name) for key in book.keys] == [
        ("acme", "production"),
        ("acme", "staging"),
        ("trial", ""),
    ]
    assert acme.models == {"smollm2-135m-instruct"}
    assert acme.origins == {"https://chat.acme.example:443"}
    assert (acme.priority, acme.weight) == (PriorityClass.REALTIME, 5)
    assert acme.limits == Limits(
        requests=Rate(20, 40, 20, 20),
        tokens=Rate(2000, 2000, 1000, 3000),
        bytes=Rate(100_000, 100_000, 100_000, 100_000),
        connections=200,
        streams=100,
    )
    assert (trial.priority, trial.weight) == (PriorityClass.BATCH, 0.5)
    assert trial.limits.requests == Rate(1, 1, 1, 1)
    assert trial.limits.connections is None


def test_a_tenant_that_the_file_does_not_name_has_no_limits() -> None:
    """The keys of the simple setting go on without a file's entry."""
    assert read_tenants(file_with("weight: 2"), "t").tenant("other") == Tenant("other")


def test_keys_are_called_by_name_or_by_hash() -> None:
    """What stands for a key in counts is never the key."""
    assert ApiKey("acme", bytes.fromhex(DIGEST), "ci").label == "ci"
    assert ApiKey("acme", bytes.fromhex(DIGEST)).label == "abababababab"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['keys: [{sha256: "00"}]'], r"4: `sha256` is not 64 hexadecimal digits; `seedance key`"),
        (["keys: []"], "4: a list is due; "),
        (["keys: [{name: x}]"], "4: `sha256` is missing; add it"),
        (["colour: red"], "4: unknown field `colour`; known here: keys, models"),
        (["weight: 2.5"], '4: `weight` is a binary float; write "2.5" in quotes'),
        (["weight: 0"], "4: `weight` is out of range; it is between 0.01 and 1000"),
        (["weight: -1"], "4: `weight` is negative"),
        (["class: urgent"], "4: unknown class `urgent`; known: realtime, standard, batch"),
        (['origins: ["chat"]'], "4: `origins`: 'chat' must be an origin such as"),
        (["limits:", "  streams: 0"], "5: `streams` is out of range; it is between 1 and"),
        (["limits:", "  tokens_per_s: {burst: 3}"], "5: `base` is missing; add it"),
        (["limits: {tokens_per_s: {base: 9, floor: 10}}"], "4: `tokens_per_s`: `base` is not"),
        (["limits: {requests_per_s: {base: 1, burst: '0.5'}}"], "4: `burst` is below 1; one must"),
        (["limits: {requests: 1}"], "4: unknown field `requests`; known here: requests_per_s"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(lines: list[str], said: str) -> None:
    """File, line, field and remedy: an operator finds the place and knows what to write."""
    with pytest.raises(DocumentError, match=rf"^tenants\.yaml:{said}"):
        read_tenants(file_with(*lines), "tenants.yaml")


def test_a_key_has_one_owner() -> None:
    """A key that two tenants claim would be billed to either."""
    text = file_with(f'keys: [{{sha256: "{DIGEST}"}}]') + (
        f'  other:\n    keys: [{{sha256: "{DIGEST.upper()}"}}]\n'.encode()
    )
    with pytest.raises(DocumentError, match="t:6: this key is one of `acme` already"):
        read_tenants(text, "t")


@pytest.mark.parametrize("name", ["-x", "a b", "x" * 65, "é"])
def test_a_tenants_name_is_plain(name: str) -> None:
    """Names go into URLs of metrics, keys of the store and invoices."""
    text = f'format: 1\ntenants:\n  "{name}": {{weight: 1}}\n'.encode()
    with pytest.raises(DocumentError, match=r"t:3: .* is no tenant's name"):
        read_tenants(text, "t")


def test_the_file_is_bounded() -> None:
    """Too long is refused unread, too many keys are refused: each is compared at every connect."""
    with pytest.raises(DocumentError, match=f"over {TENANTS_BYTES_MAX} bytes"):
        read_tenants(b"#" * (TENANTS_BYTES_MAX + 1), "t")
    keys = ", ".join(f'{{sha256: "{n:064x}"}}' for n in range(KEYS_MAX + 1))
    with pytest.raises(DocumentError, match=f"over {KEYS_MAX} keys"):
        read_tenants(file_with(f"keys: [{keys}]"), "t")
