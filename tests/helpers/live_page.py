"""The live page in a browser, and the server that it looks at: what its tests share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from nanoinfer import Engine, RequestOutput
from tests.helpers.engines import make_engine
from tests.helpers.servers import patient_app, running
from tests.helpers.waiting import PAUSE_S, Worker, until

HOSTILE = "</script><img src=x>${1}<!--"
MARKDOWN = """\
# A *title*

1. one
2. two **bold**

   > quoted `code`

```python
x = "<b>"  # not bold
```

| a | b |
|:-:|--:|
| 1 | <script>document.title = "run"</script> |

<img src=x onerror="document.title = 'run'"> ![image](https://elsewhere.example/a.png)
[a](https://b.example "t") [b](javascript:alert(1)) [c](data:text/html,x) <javascript:alert(1)> [d](/flush_cache) [e][later]

a hard\\
break, a [late][later] one

[later]: https://later.example

Setext
---
"""


class Letters:
    """A server whose model counts letters. Its engine makes passes freely, or only those that the test lets through."""

    def __init__(self, engine: Engine, free: bool):
        self.core, self._free, self._passes = engine, free, threading.Semaphore(0)
        self._sent: list[Worker] = []
        self._step, engine.make_step = engine.make_step, self._step_if_let  # type: ignore[method-assign]
        self.passes = 0

    def _step_if_let(self) -> list[RequestOutput]:
        """A step, or none: then the engine's thread goes on to what else it has to do."""
        if not self._free and not self._passes.acquire(timeout=PAUSE_S):
            self.core.last_batch = None
            return []
        self.passes += 1
        return self._step()

    @contextmanager
    def serving(self, port: int = 0, **settings: Any) -> Iterator["Letters"]:
        with running(patient_app(self.core, **settings), port) as self.up:
            try:
                yield self
            finally:
                self.go_on()

    def send(self, prompt: str, max_tokens: int = 5) -> None:
        """Another client's request, which need not be answered before this returns."""
        body = {"model": self.up.service.base_name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        self._sent.append(Worker(self.up.post, "/v1/completions", body))

    def answered(self) -> None:
        for sent in self._sent:
            sent.result()

    def arrived(self, requests: int) -> None:
        """Wait until so many requests are in the engine."""
        until(lambda: (stats := self.core.stats()).waiting + stats.running == requests)

    def step(self, passes: int = 1) -> None:
        """Let so many passes through, of requests that have arrived."""
        goal = self.passes + passes
        self._passes.release(passes)
        until(lambda: self.passes == goal)

    def go_on(self) -> None:
        """Let all passes through from now on."""
        self._free = True


def letters(free: bool = True, **settings: Any) -> Any:
    return Letters(make_engine(slots=512), free).serving(**settings)


def opened(browser: webdriver.Chrome, url: str) -> webdriver.Chrome:
    """The page, when it has drawn its first frame."""
    browser.get(f"{url}/")
    shows(browser, "live.Live.page?.state !== null && document.querySelector('.slot') !== null")
    return browser


def shows(page: webdriver.Chrome, condition: str) -> None:
    """Wait until the page's scripts have run, a condition in JavaScript is true, and the page has drawn all that it knows:
    it takes a frame at once, and draws it with the next picture of the screen. Before its scripts have run, `live` is the
    button with that id."""
    until(lambda: page.execute_script(f"return window.live?.Live?.scheduled === false && ({condition})"))


def find(page: webdriver.Chrome, selector: str) -> Any:
    return page.find_element(By.CSS_SELECTOR, selector)


def texts(page: webdriver.Chrome, selector: str) -> list[str]:
    return page.execute_script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
    )


def set_field(page: webdriver.Chrome, name: str, value: Any) -> None:
    page.execute_script(
        "document.querySelector('#settings').open = true; document.getElementById(arguments[0]).value = arguments[1]",
        name,
        value,
    )


def ask(page: webdriver.Chrome, question: str) -> str:
    """Send a message by keyboard and wait for the whole answer. Returns it as the page keeps it."""
    page.execute_script("for (const one of document.querySelectorAll('.message')) one.dataset.isOld = 1")
    find(page, "#question").send_keys(question, Keys.ENTER)
    shows(page, "document.querySelector('.message.assistant:not([data-is-old])') !== null")
    shows(page, "Chat.running === null")
    return page.execute_script("return Chat.now.messages.at(-1)?.content")


def node_texts(page: webdriver.Chrome) -> list[str]:
    return texts(page, "#tree [data-node] b")
