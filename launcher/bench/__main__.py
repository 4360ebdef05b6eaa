"""`make bench`: the table, as Markdown."""

from __future__ import annotations

from rich.console import Console
from rich.progress import track

from launcher.bench.cases import CASES
from launcher.bench.measure import measure

__all__ = ["main"]


def main() -> None:
    """Measure every case and print the table; the progress bar goes to stderr."""
    console = Console(stderr=True)
    results = [measure(case) for case in track(CASES, "measuring", console=console)]
    print("| station | µs | per | × json.dumps of a frame |")
    print("| --- | ---: | --- | ---: |")
    for result in results:
        case = result.case
        print(f"| {case.name} | {result.us:.2f} | {case.unit} | {result.ratio:.2f} |")


if __name__ == "__main__":
    main()
