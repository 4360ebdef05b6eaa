"""How far the native step is from the default model in fp32."""

from __future__ import annotations

import pytest

from inference.model.gguf_weights import GgufWeights
from inference.model.text_files import text_of_gguf
from tests.support.default_model import default_model_path
from tests.support.native_models import (
    divergence,
    native_library,
    native_runner,
    token_rows,
    torch_logits,
    torch_model,
)

pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(native_library() is None, reason="no C++ compiler"),
]

DIVERGENCE_MAX = 0.002  # nats per token
TABLE = tuple(range(16))
TEXTS = {
    "prose": (
        "The history of the lighthouse is older than the history of the town. Long before the "
        "first houses were built along the bay, sailors had learned to look for the fire that "
        "burned on the northern cliff, and the monks who kept it were paid in fish, in salt and in "
        "news from other coasts. When the harbour was dredged in 1823, the fire was replaced by a "
        "lamp with a lens of polished glass, and a keeper was appointed by the county. He wrote "
        "down the weather every day, twice a day, for forty-one years; his books are still in the "
        "museum, and they are the reason why we know so much about the storms of that century."
    ),
    "chat": (
        "<|im_start|>user\nHow does a bicycle stay upright, and why is it harder at low speed?"
        "<|im_end|>\n<|im_start|>assistant\nA bicycle stays upright because the rider keeps "
        "steering it under its own weight. When the bike leans to one side, the front wheel turns "
        "slightly into the lean, and the path of the wheels curves back beneath the center of "
        "mass. At low speed a correction moves the bike sideways only slowly, so the rider has to "
        "turn the handlebars further and more often to stay balanced.<|im_end|>\n"
    ),
    "code": (
        "def merge(left, right):\n    # Both lists are sorted; so is the result.\n    merged = []\n"
        "    i = j = 0\n    while i < len(left) and j < len(right):\n        if left[i] <= right[j]:"
        "\n            merged.append(left[i])\n            i += 1\n        else:\n            "
        "merged.append(right[j])\n            j += 1\n    return merged + left[i:] + right[j:]\n"
    ),
}


def test_the_default_model_is_near_fp32() -> None:
    """The likelihoods of the next token differ from fp32's by at most 0.002 nats per token."""
    source = GgufWeights(default_model_path())
    tokenizer = text_of_gguf(source.fields).tokenizer
    runner, model = native_runner(source), torch_model(source)
    for name, text in TEXTS.items():
        token_ids = tokenizer.encode(text).ids[: 16 * len(TABLE)]
        logits, _ = runner.forward(token_rows(token_ids, TABLE))
        found = divergence(torch_logits(source, token_ids, model), logits)
        assert found <= DIVERGENCE_MAX, name
    runner.close()
