"""Makes `live_page.gif`: the server's live page while six requests are served, as Chromium shows it.

    python data/trace/make_live_animation.py

It needs the packages of `.[dev]`, Chromium and its driver. Passes are slowed down, so that each picture shows a few more of
them; the times of pictures are not those of the run.
"""

import base64
import io
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from nanoinfer import LLM

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from selenium.webdriver.common.keys import Keys  # noqa: E402

from tests.helpers.chromium import chromium  # noqa: E402
from tests.helpers.live_page import opened, set_field, shows  # noqa: E402

SCREEN, WIDTH, COLOURS = (1440, 1330), 860, 128
OTHERS = (
    "Tell me a story about a bear.",
    "Tell me a story about a boat.",
    "Who are you?",
    "Tell me a story about a fox and a bird.",
)
MS, LAST_MS = 450, 3000  # how long a picture is shown


class Passes:
    """Lets passes of an engine through, so many at a time."""

    def __init__(self, llm: LLM):
        self._engine, self._step = llm.engine, llm.engine.make_step
        llm.engine.make_step = self._step_if_let  # type: ignore[method-assign]
        self._left = threading.Semaphore(0)

    def _step_if_let(self) -> Any:
        if not self._left.acquire(timeout=0.01):  # then the page may look
            self._engine.last_batch = None
            return []
        return self._step()

    def let(self, passes: int) -> None:
        """So many more."""
        self._left.release(passes)


def picture(page: Any) -> Image.Image:
    """What the page looks like now."""
    shot = page.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    image = Image.open(io.BytesIO(base64.b64decode(shot))).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)


def main() -> None:
    """Serve, watch, write."""
    llm = LLM("story", max_total_tokens=512, max_running_requests=4)
    passes, pictures = Passes(llm), []
    with (
        llm.serve(show_prompts=True) as serving,
        tempfile.TemporaryDirectory() as profile,
        chromium(Path(profile)) as page,
    ):
        screen = {"width": SCREEN[0], "height": SCREEN[1], "deviceScaleFactor": 1, "mobile": False}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        opened(page, serving.url)
        shows(page, "document.querySelector('#model').value !== ''")
        set_field(page, "max_tokens", 32)
        set_field(page, "temperature", 0)
        pictures.append(picture(page))
        page.find_element("css selector", "#question").send_keys("Tell me a story about a fox.", Keys.ENTER)
        asked, done = [*OTHERS], 0
        while llm.engine.stats().finished < 1 + len(OTHERS):
            if asked and len(pictures) % 3 == 0:
                body = {"model": "story", "messages": [{"role": "user", "content": asked.pop(0)}]}
                body |= {"max_tokens": 24, "temperature": 0}
                threading.Thread(
                    target=httpx.post,
                    args=(f"{serving.url}/v1/chat/completions",),
                    kwargs={"json": body, "timeout": 600},
                ).start()
            passes.let(3)
            done += 1
            shows(page, f"live.Live.replay.last >= {3 * done - 2}")
            pictures.append(picture(page))
        passes.let(10_000)
        shows(page, "Chat.running === null")
        pictures.append(picture(page))
    some = [pictures[len(pictures) // 3], pictures[-1]]
    both = Image.new("RGB", (WIDTH, sum(each.height for each in some)))
    for each, top in zip(some, (0, some[0].height), strict=True):
        both.paste(each, (0, top))
    palette = both.quantize(COLOURS, kmeans=COLOURS)
    frames = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    times = [MS] * (len(frames) - 1) + [LAST_MS]
    frames[0].save(
        HERE / "live_page.gif", save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True
    )
    print(f"{len(frames)} pictures, {(HERE / 'live_page.gif').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
