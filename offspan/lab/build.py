"""Puts the page together: ES modules, style and data become one HTML text that loads nothing.

Each module becomes a function of its own that is called once, after those that it imports from, so that names stay apart. The policy of
the page allows this one script and this one style, by their checksums, and nothing else.
"""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import offspan
from offspan.errors import OffspanError

PAGE = Path(__file__).parent / "page"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function|class) (\w+))", re.MULTILINE)


def page(data: dict[str, Any]) -> str:
    """The whole page, with `data` embedded."""
    script, style = bundle("main"), (PAGE / "style.css").read_text(encoding="utf-8")
    policy = "; ".join(
        [
            *("default-src 'none'", f"script-src {_checksum(script)}", f"style-src {_checksum(style)}", "img-src data:"),
            *("base-uri 'none'", "form-action 'none'"),
        ]
    )
    # No text can end the element that it stands in.
    embedded = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {"policy": policy, "style": style, "version": offspan.__version__, "data": embedded, "script": script}
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def bundle(entry: str) -> str:
    """All modules that `entry` imports, directly or not, as one script."""
    done: list[str] = []

    def place(name: str, above: tuple[str, ...]) -> str:
        if name in above:
            raise OffspanError(f"the modules of the page import each other in a circle: {' → '.join([*above, name])}.")
        if name in done:
            return ""
        source = (PAGE / f"{name}.js").read_text(encoding="utf-8")
        before = "".join(place(one, (*above, name)) for _, one in IMPORT.findall(source))
        done.append(name)
        body = EXPORT.sub("", IMPORT.sub(lambda found: f"const {{{found[1].replace(' as ', ': ')}}} = module_{found[2]};\n", source))
        if re.search(r"^(import|export)\b", body, re.MULTILINE):
            raise OffspanError(f'{name}.js has an import or export that is not of the form `import {{ a }} from "./b.js";`.')
        return f"{before}const module_{name} = (() => {{\n{body}return {{ {', '.join(EXPORT.findall(source))} }};\n}})();\n"

    script = '"use strict";\n' + place(entry, ())
    if "</script" in script.lower() or "<!--" in script:
        raise OffspanError("the script of the page must not hold `</script` or `<!--`, which would end its element.")
    return script


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
