#!/usr/bin/env python3
"""The web page of gpurun serve in a browser without a window: page.py GPURUN [--shots FOLDER]

Needs Debian's chromium and chromium-driver and PyPI's selenium; exit code 77 without them."""
import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
import urllib.error
import urllib.request

from served import Served

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select, WebDriverWait
except ImportError:
    print("page.py: PyPI's selenium is not installed")
    sys.exit(77)
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not CHROMIUM or not DRIVER:
    print("page.py: chromium or chromedriver is not installed")
    sys.exit(77)

flags = argparse.ArgumentParser()
flags.add_argument("gpurun")
flags.add_argument("--shots", help="folder that screenshots are written to")
flags = flags.parse_args()


def browser(width, dark):
    o = Options()
    o.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        o.add_argument(flag)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=o, service=Service(DRIVER))
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                      {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 700})
    b.execute_cdp_cmd("Emulation.setEmulatedMedia",
                      {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return b


class Page:
    def __init__(self, url, width=1400, dark=False):
        self.b, self.name = browser(width, dark), "%d-%s" % (width, "dark" if dark else "light")
        self.b.get(url)

    def one(self, css):
        return self.b.find_element(By.CSS_SELECTOR, css)

    def all(self, css):
        return self.b.find_elements(By.CSS_SELECTOR, css)

    def until(self, what, seconds=30):
        return WebDriverWait(self.b, seconds, 0.05).until(lambda _: what())

    def button(self, text, within=""):
        return next(e for e in self.all(within + " button") if text in (e.get_attribute("textContent"), e.get_attribute("aria-label")))

    def send(self, text):
        self.one("#input").send_keys(text, Keys.ENTER)

    def finished(self):
        self.until(lambda: self.one("#stop").get_attribute("hidden") and self.all(".message.assistant"))
        return self.one("#status").text

    def shot(self, name):
        if flags.shots:
            os.makedirs(flags.shots, exist_ok=True)
            self.b.save_screenshot(os.path.join(flags.shots, "%s-%s.png" % (self.name, name)))

    def overflow(self):
        return self.b.execute_script("return document.documentElement.scrollWidth - window.innerWidth")

    def end(self):
        bad = [m for m in self.b.get_log("browser") if m["level"] == "SEVERE" and "favicon" not in m["message"]]
        self.b.quit()
        assert not bad, bad


def limit(p, n):
    """Sets the greatest length of answers by the settings dialog."""
    settings = p.button("Settings")
    p.until(lambda: settings.rect["x"] >= 0) # a menu that slides in
    settings.click()
    field = p.one("dialog [name=max_tokens]")
    field.clear()
    field.send_keys(str(n))
    p.button("Close", "dialog").click()
    p.until(lambda: not p.one("dialog").get_attribute("open"))


def cells(url):
    with urllib.request.urlopen(url + "/cache") as r:
        return json.load(r)


def desktop(url):
    p = Page(url)
    p.until(lambda: p.one("#model").text not in ("…", "no connection"))
    assert "parameters" in p.one("#about").text, p.one("#about").text
    limit(p, 24)
    p.send("Once upon a time")
    assert p.finished().startswith("Answer complete"), p.one("#status").text
    first = p.one(".message.assistant .body").text
    assert len(first) > 10, first
    assert "tokens" in p.one(".message.assistant .rate").text
    # markup in a message is text
    p.send("<b>bold</b> and then")
    p.finished()
    assert p.all(".message.user .body")[1].text == "<b>bold</b> and then" and not p.all(".message.user b")
    # a branch: both versions stay, and the arrows go between them
    p.button("Edit this message as a new branch").click()
    box = p.one(".message.user textarea")
    box.clear()
    box.send_keys("The little dog", Keys.ENTER)
    p.until(lambda: len(p.all(".message.user")) == 1)
    p.finished()
    assert "2/2" in p.one(".message.user .tools").text
    p.button("Previous version").click()
    assert p.one(".message.user .body").text == "Once upon a time" and len(p.all(".message.user")) == 2
    assert p.one(".message.assistant .body").text == first
    # what both turns share was not computed again
    p.button("Answer again as a new branch").click()
    p.finished()
    assert "from the cache" in p.one(".message.assistant .rate").text, p.one(".message.assistant .rate").text
    # the cache
    p.button("Cache").click()
    p.until(lambda: p.all("#cache tr"))
    assert "cells used" in p.one("#cache").text
    p.shot("cache")
    p.button("Cache").click()
    # conversations are kept over a reload
    p.b.refresh()
    p.until(lambda: p.all("#list .open"))
    p.one("#list .open").click()
    assert p.one(".message.user .body").text == "Once upon a time"
    p.shot("conversation")
    # stop, by the keyboard
    p.button("New conversation").click()
    limit(p, 8000)
    p.b.execute_script("""const send = window.fetch;
        window.fetch = (u, o) => send(u, o.body ? {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true})} : o);""")
    p.send("Once upon a time")
    p.until(lambda: p.one(".message.assistant .body").text)
    p.one("#input").send_keys(Keys.ESCAPE)
    assert p.finished() == "Stopped", p.one("#status").text
    p.until(lambda: all(s["state"] == "idle" for s in cells(url)["sequences"]), 2)
    p.button("Settings").click()
    p.shot("settings")
    p.button("Close", "dialog").click()
    p.end()


def looks(url):
    for width in (360, 1400):
        for dark in (False, True):
            p = Page(url, width, dark)
            p.until(lambda: p.one("#model").text != "…")
            p.shot("empty")
            if width == 360:
                p.button("Conversations").click()
                limit(p, 40)
            else:
                limit(p, 40)
            p.send("Lily and Tom went to the park because")
            p.finished()
            p.button("Cache").click()
            p.until(lambda: p.all("#cache tr"))
            assert p.overflow() <= 0, "wider than the window by %d at %d" % (p.overflow(), width)
            p.shot("answer")
            # every button has a name that a screen reader can say
            for e in p.all("button"):
                assert e.get_attribute("textContent").strip() or e.get_attribute("aria-label"), e.get_attribute("outerHTML")
            p.end()


def models(url):
    """The model is chosen where there are several, and stays so over a reload."""
    p = Page(url)
    p.until(lambda: p.one("#models").is_displayed())
    assert [o.text for o in p.all("#models option")] == ["first", "second"] and not p.one("#model").is_displayed()
    limit(p, 8)
    for name in ("second", "first"):
        Select(p.one("#models")).select_by_visible_text(name)
        p.send("Once upon a time")
        p.finished()
        p.b.refresh()
        p.until(lambda: p.one("#models").get_attribute("value") == name)
        p.until(lambda: "parameters" in p.one("#about").text)
        assert json.load(urllib.request.urlopen(url + "/v1/models/" + name))["status"]["value"] == "loaded"
        p.button("Cache").click()
        p.until(lambda: p.all("#cache tr"))
    p.end()


# A template without roles, as the built-in model continues stories.
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"

with Served(flags.gpurun, ["-c", "8192", "-np", "4", "--slots", "--temp", "0", "--chat-template", TEMPLATE]) as server:
    with urllib.request.urlopen(server.url + "/") as r:
        etag, body = r.headers["ETag"], r.read()
        assert "script-src 'sha256-" in r.headers["Content-Security-Policy"] and b"</html>" in body
    try:
        urllib.request.urlopen(urllib.request.Request(server.url + "/", headers={"If-None-Match": etag}))
        raise AssertionError("the page was sent again")
    except urllib.error.HTTPError as e:
        assert e.code == 304, e.code
    desktop(server.url)
    looks(server.url)
with tempfile.TemporaryDirectory() as folder:
    for name in ("first", "second"):
        shutil.copy(pathlib.Path(__file__).parents[2] / "tools/default-model.gguf", f"{folder}/{name}.gguf")
    with Served(flags.gpurun, ["--models-dir", folder, "--slots", "--temp", "0", "--chat-template", TEMPLATE]) as server:
        models(server.url)
print("page: good")
