"""LangChain on a mesh: python examples/langchain_chat.py ["a question"].

Address and key are OpenAI's usual variables; without them, the mesh on this machine.
"""

import os
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI


def main() -> None:
    """Print the answer as it comes, then the same question's answer in one piece."""
    question = sys.argv[1] if len(sys.argv) > 1 else "What is a neural network?"
    base_url = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1")
    api_key = os.environ.get("OPENAI_API_KEY", "local")
    model = OpenAI(base_url=base_url, api_key=api_key).models.list().data[0].id
    chat = ChatOpenAI(
        base_url=base_url, api_key=api_key, model=model, temperature=0.3, max_tokens=256
    )
    for chunk in chat.stream([HumanMessage(question)]):
        print(chunk.text, end="", flush=True)
    print()
    whole = chat.invoke([HumanMessage(question)])
    print(f"{whole.usage_metadata['output_tokens']} tokens of {model}", file=sys.stderr)


if __name__ == "__main__":
    main()
