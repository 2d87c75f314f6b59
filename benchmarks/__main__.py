"""All benchmarks, one after another, in one run: `python benchmarks [--quick]`. Let nothing else run beside them."""

import subprocess
import sys
from pathlib import Path

for name in ("lqr", "neural", "estimators", "moments", "selection", "audits", "cluster"):
    print(f"\n== {name}\n", flush=True)
    subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py")), *sys.argv[1:]], check=True)
