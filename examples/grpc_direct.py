"""Stream an answer from an instance: python examples/grpc_direct.py [HOST:PORT [PROMPT]]."""

import sys

import grpc

from seedance.v2 import inference_pb2 as pb
from seedance.v2 import inference_pb2_grpc


def main() -> None:
    """Print the answer as it comes."""
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"
    prompt = sys.argv[2] if len(sys.argv) > 2 else "What is a neural network?"  # noqa: PLR2004
    request = pb.GenerateRequest(
        messages=[pb.ChatMessage(role="user", content=prompt)],
        sampling=pb.Sampling(temperature=0.3),
        max_tokens=256,
    )
    frame = pb.ClientFrame(stream_id=1, open=pb.Open(request=request))
    with grpc.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        for message in stub.Stream(iter([pb.StreamRequest(frames=[frame])])):
            print(message.tokens.text.decode(), end="", flush=True)
            for event in message.frames:
                if event.HasField("error"):
                    sys.exit(f"{event.error.code}: {event.error.message}")
    print()


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:
        sys.exit(f"{error.code().name}: {error.details()}")
