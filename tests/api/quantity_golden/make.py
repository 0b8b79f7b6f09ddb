"""Write ../quantity_golden.json: what Kubernetes' own code makes of many amounts. Needs Go; run by hand.

python tests/api/quantity_golden/make.py
"""

import itertools
import json
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "quantity_golden.json"

NUMBERS = ("0", "1", "3", "8", "1.5", "0.1", ".5", "2.", "007", "512", "1000", "1023", "1024", "1536", "123456789")
SUFFIXES = (
    *("", "n", "u", "m", "k", "M", "G", "T", "P", "E"),
    *("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"),
    *("e3", "E3", "e-3", "e+2", "e0", "E-9"),
)
NAMED = (
    *("+5", "-1", "-1.5Gi", "-0", "+.5Ki", "-1n", "-0.1n", "0.0000000001", "0.00000000049", "1.0000000001", "1.1Ki"),
    *("100m", "1000m", "1500m", "0.5", "2500000u", "1024Mi", "1025Mi", "2048Ki", "1e-10", "12e6", "12e7", "100e-3"),
    *("9223372036854775807", "7.5Ei", "7Ei", "9E", "9.2E", "9223372036854775807n", "9223372036854775.807k", "0.001Ki"),
    # Refused.
    *("", "-", "+", "abc", "1ki", "1K", "1kI", "1KI", "1mi", "1gi", "1Ei3", "1i", "1 Gi", "1Gib", "1GiB", "1e", "1e+"),
    *("e3", "1.2.3", "1,5", "0x10", "1_000", "NaN", "nan", "Inf", "inf", "-inf", "--1", "+-1", "1e3.5", "1e3k", "1mm"),
    *("\u0661", "1\n", "\t1", "1\x00", "1e9999999999999999999999", "Ki", "m", "1ee3", "1EE3", "\u00bd"),
)
SUMMANDS = ("0", "0Ki", "1", "100m", "1.5Gi", "512Mi", "1k", "3e3", "7n", "-2", "1Ki", "999M", "4Pi")


def main() -> None:
    texts = [number + suffix for number, suffix in itertools.product(NUMBERS, SUFFIXES)] + list(NAMED)
    pairs = list(itertools.product(SUMMANDS, repeat=2))
    result = subprocess.run(
        ["go", "run", "."],
        cwd=HERE,
        input=json.dumps({"texts": texts, "pairs": pairs}),
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    answer = json.loads(result.stdout)
    lines = [f'"{key}": [\n' + ",\n".join(json.dumps(item) for item in answer[key]) + "\n]" for key in answer]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{len(texts)} amounts and {len(pairs)} sums in {GOLDEN}")


if __name__ == "__main__":
    main()
