"""OpenAI's own client on a mesh: python examples/openai_client.py ["a question"].

Address and key are OpenAI's usual variables; without them, the mesh on this machine.
"""

import os
import sys

from openai import OpenAI


def main() -> None:
    """Print the answer as it comes, and what it cost."""
    question = sys.argv[1] if len(sys.argv) > 1 else "What is a neural network?"
    client = OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "local"),
    )
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0.3,
        max_completion_tokens=256,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage:
            print(f"\n{chunk.usage.completion_tokens} tokens of {model}", file=sys.stderr)


if __name__ == "__main__":
    main()
