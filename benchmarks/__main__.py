"""All benchmarks, one after another, in one run: `python benchmarks [--quick]`. Let nothing else run beside them."""

import subprocess
import sys
from pathlib import Path

for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
    print(f"\n== {file.stem}\n", flush=True)
    subprocess.run([sys.executable, str(file), *sys.argv[1:]], check=True)
