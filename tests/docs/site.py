"""Reading the built documentation site, and looking at it with Chromium."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --remote-debugging-port=0"
).split()
# What makes a browser load something, by element: the attribute with its address.
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


@dataclass
class HtmlPage(HTMLParser):
    """What a page links to, loads and shows. tables, items: how many its article has."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    terms: set[str] = field(default_factory=set)  # of definition lists
    text: str = ""  # of the article, code left out
    tables: int = 0
    items: int = 0

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.feed(self.path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if LOADS.get(tag, "") in given and given.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(given[LOADS[tag]])
        if tag in ("article", "pre", "code", "dt"):
            self._open.append(tag)
        if "article" in self._open:
            self.tables += tag == "table"
            self.items += tag == "li"

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if "dt" in self._open and data.strip():
            self.terms.add(data.strip())
        if "article" in self._open and not {"pre", "code"} & set(self._open):
            self.text += data


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1, and keeps what a page posts to it."""

    def __init__(self, folder: Path) -> None:
        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args, directory=str(folder))

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                outer.posted = json.loads(self.rfile.read(size))
                self.send_response(204)
                self.end_headers()
                outer.answered.set()

            def log_message(self, *args: Any) -> None:
                pass

        outer = self
        self.posted: Any = None
        self.answered = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: Any) -> None:
        self.shutdown()
        self.server_close()


def posted_by(address: str, server: Server, seconds: float) -> Any:
    """What the page at this address posts to the server, when Chromium has opened it."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert server.answered.wait(seconds), f"{address}: no answer after {seconds} s"
        finally:
            browser.terminate()
            browser.wait(20)
    return server.posted
