"""Pictures of a report, or of the page of a server: one in the light and one in the dark scheme.

chainrule compare --data builtin:prose --minutes 3 --out comparison
python examples/screenshot.py comparison/report.html --out docs/images/report

chainrule serve runs
python examples/screenshot.py "http://127.0.0.1:8000/#read?model=gpt&with=ngram" --out docs/images/page-read
python examples/screenshot.py "http://127.0.0.1:8000/#search?model=gpt" --out docs/images/page-search

writes OUT-light.png and OUT-dark.png. It needs the extras `dev` (playwright) and `images` (Pillow), and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", help="report.html of a comparison or a frontier, or an address of the page")
    parser.add_argument("--out", type=Path, required=True, help="path of the pictures without -light.png and -dark.png")
    parser.add_argument("--width", type=int, default=1100, help="of the page, in px")
    parser.add_argument("--height", type=int, default=1060, help="of the picture, in px from the top of the page")
    parser.add_argument("--hover", help="CSS selector of what the pointer is on")
    parser.add_argument("--hide", help="CSS selector of what is left out, such as text without a font for it")
    arguments = parser.parse_args()
    address = arguments.report if "://" in arguments.report else Path(arguments.report).resolve().as_uri()
    with sync_playwright() as started:
        path = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = started.chromium.launch(executable_path=path)
        for scheme in ("light", "dark"):
            size = {"width": arguments.width, "height": arguments.height}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(address, wait_until="networkidle")
            if arguments.hide:
                page.eval_on_selector_all(arguments.hide, "all => all.forEach((one) => one.remove())")
            if arguments.hover:
                page.locator(arguments.hover).first.hover()
            picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
            file = arguments.out.with_name(f"{arguments.out.name}-{scheme}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            picture.quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
            print(f"{file}: {file.stat().st_size // 1024} KB")
        browser.close()


if __name__ == "__main__":
    main()
