"""llama.cpp's own server inside this process: `python -m linkbound.serve.llama_child` (P2)."""

import argparse
import threading

from linkbound.errors import MissingExtra


def main() -> None:
    """Serve a GGUF file on loopback until a signal ends the process."""
    parser = argparse.ArgumentParser(description="llama.cpp's server, by xllamacpp.")
    parser.add_argument("--model", required=True, help="GGUF file.")
    parser.add_argument("--port", type=int, required=True, help="Port on loopback.")
    parser.add_argument("--context", type=int, required=True, help="Tokens of all slots.")
    parser.add_argument("--sequences", type=int, required=True, help="Slots.")
    asked = parser.parse_args()
    serve(asked.model, asked.port, asked.context, asked.sequences)


def serve(model: str, port: int, context: int, sequences: int) -> None:
    """Serve `model` with one thread. Raises MissingExtra."""
    try:
        import xllamacpp
    except ImportError as error:
        raise MissingExtra(
            "xllamacpp is not installed.",
            why="It holds llama.cpp's server.",
            hint="Install it: pip install 'linkbound[engine-test]'.",
        ) from error
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context
    params.n_parallel = sequences
    params.endpoint_metrics = True
    # Two threads on shared cores wait for each other in busy loops, a hundred times slower.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    # The server ends with this object.
    server = xllamacpp.Server(params)
    threading.Event().wait()
    del server


if __name__ == "__main__":
    main()
