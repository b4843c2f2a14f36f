"""MLflow's web page in a headless browser, shared by the test and by the demo's screenshots.

What it knows of the page was read off MLflow 3.17: the addresses, the run table (ag-Grid, whose
rows carry run ids) and the frame that shows HTML files.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from selenium import webdriver
from selenium.common.exceptions import (
    StaleElementReferenceException,
    TimeoutException,
    WebDriverException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

# Columns that are always there.
RUN_NAME, CREATED, DURATION = "attributes.`Run Name`", "runDateAndNestInfo", "duration"
SIZE = (1400, 900)  # pixels of the page, and of its pictures
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # The page asks for fonts and settings elsewhere; nothing here may depend on a network.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


def missing() -> str:
    """Says which program is not here; empty if both are."""
    wanted = {"chromium": _chromium(), "chromedriver": shutil.which("chromedriver")}
    absent = [name for name, path in wanted.items() if path is None]
    if not absent:
        return ""
    return f"not on PATH: {', '.join(absent)} (apt-get install chromium chromium-driver)"


def _chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("google-chrome")


def session_of(leader: int) -> list[psutil.Process]:
    """The living processes of a session, whichever group they moved to."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            continue
    return found


def end_session(leader: int, *, grace_s: float = 10.0) -> None:
    """Asks a session that we started to end, then makes it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        processes = session_of(leader)
        for process in processes:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        if not psutil.wait_procs(processes, timeout=grace_s)[1]:
            return


@contextmanager
def mlflow_server(tracking_uri: str, folder: Path, *, timeout_s: float = 120.0) -> Iterator[str]:
    """Serves a tracking database on a free loopback port.

    Args:
        tracking_uri: The database.
        folder: For the log, and as working directory.
        timeout_s: How long it may take to answer.

    Yields:
        The address, without a slash at its end.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with (folder / "mlflow.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--backend-store-uri", tracking_uri, "--host", "127.0.0.1"),
                *("--port", str(port)),
            ],
            cwd=folder,
            env=os.environ
            | {
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "DO_NOT_TRACK": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + timeout_s
        while not _answers(address):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "mlflow.log").read_text())
            time.sleep(0.2)
        yield address
    finally:
        end_session(process.pid)
        process.wait()


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address + "/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A headless browser with a fresh profile and `folder` as its home."""
    # Not in `folder`: the path of a socket that it makes there must be short.
    with tempfile.TemporaryDirectory(prefix="ui-", ignore_cleanup_errors=True) as scratch:
        options = webdriver.ChromeOptions()
        options.binary_location = _chromium() or ""
        for flag in (*_FLAGS, f"--user-data-dir={scratch}/profile"):
            options.add_argument(flag)
        service = Service(
            shutil.which("chromedriver"),
            env=os.environ | {"HOME": str(folder), "TMPDIR": scratch},
            popen_kw={"start_new_session": True},
        )
        with _driver(options, service) as driver:
            yield driver


@contextmanager
def _driver(options: webdriver.ChromeOptions, service: Service) -> Iterator[webdriver.Chrome]:
    driver = None
    try:
        driver = webdriver.Chrome(options=options, service=service)
        width, height = SIZE
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        yield driver
    finally:
        process = service.process
        try:
            if driver is not None:
                driver.quit()
        except (WebDriverException, OSError):
            pass  # it is ended below
        if process is not None:
            end_session(process.pid)
            process.wait()


class MlflowPage:
    """What a person does on MLflow's page.

    Args:
        driver: The browser.
        address: The server.
        experiment_id: The experiment to look at.
        timeout_s: How long one thing may take to appear.
    """

    def __init__(
        self,
        *,
        driver: webdriver.Chrome,
        address: str,
        experiment_id: str,
        timeout_s: float = 60.0,
    ) -> None:
        self.driver = driver
        self._base = f"{address}/#/experiments/{experiment_id}/runs"
        self._experiment_id = experiment_id
        self._wait = WebDriverWait(
            driver, timeout_s, ignored_exceptions=[StaleElementReferenceException]
        )
        self._remember({"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true"})

    def choose_columns(self, widths: Mapping[str, int]) -> None:
        """Has the run table open with these columns, in this order, e.g. "metrics.`speedup`"."""
        key = f'MLflowLocalStorage-1.1-ExperimentPage-["{self._experiment_id}"]-ReactComponentState'
        state = {
            "selectedColumns": list(widths),
            "columnOrder": list(widths),
            "columnWidths": dict(widths),
        }
        self._remember({key: json.dumps(state)})

    def open_runs(self) -> None:
        """Opens the run table, oldest first, which is best first for a search's elites.

        Sorted by anything but the time of creation, the table does not nest children.
        """
        self._open(
            self._base + "?workflowType=machine_learning"
            "&orderByKey=attributes.start_time&orderByAsc=true"
        )
        self.see("css selector", "[row-id]")

    def run_ids(self) -> list[str]:
        """The runs the table shows, from the top."""
        rows = self.driver.find_elements(By.CSS_SELECTOR, "[role=row][row-id]")
        places = {row.get_attribute("row-id"): int(row.get_attribute("row-index")) for row in rows}
        return sorted(places, key=places.__getitem__)

    def expand(self, run_id: str, children: int) -> None:
        """Opens a run's children."""
        button = self.see("css selector", f"[row-id='{run_id}'] [col-id='{RUN_NAME}'] button")
        before = len(self.run_ids())
        button.click()
        self._wait.until(lambda _: len(self.run_ids()) >= before + children)

    def cell(self, run_id: str, column: str) -> str:
        """Waits for what the table says of a run, e.g. in the column "metrics.`speedup`"."""
        return self.see("css selector", f"[row-id='{run_id}'] [col-id='{column}']").text.strip()

    def open_file(self, run_id: str, path: str) -> None:
        """Opens an artifact of a run."""
        self._open(f"{self._base}/{run_id}/artifacts/{path}?workflowType=machine_learning")

    def enter_frame(self) -> None:
        """Goes into the frame that shows an HTML file."""
        frame = self.see("css selector", "iframe.mlflow-html-iframe, iframe#html")
        self.driver.switch_to.frame(frame)

    def leave_frame(self) -> None:
        """Goes back to the page."""
        self.driver.switch_to.default_content()

    def see(self, how: str, what: str) -> Any:
        """Waits until an element is displayed, and returns it."""

        def visible(driver: webdriver.Chrome) -> Any:
            return next((e for e in driver.find_elements(how, what) if e.is_displayed()), None)

        return self._until(visible, what)

    def read(self, text: str) -> str:
        """Waits until the page, or the frame, shows a text; returns all that it shows."""

        def shown(driver: webdriver.Chrome) -> str | None:
            words = driver.find_element(By.TAG_NAME, "body").text
            return words if text in words else None

        return self._until(shown, text)

    def picture(self, path: Path) -> None:
        """Saves what is visible, without the assistant's button and marks of mouse and keys."""
        ActionChains(self.driver).move_by_offset(1, 1).perform()
        self.driver.execute_script(
            "const style = document.createElement('style');"
            "style.textContent = '[data-assistant-ui] { display: none }"
            " .ag-cell-focus { border-color: transparent !important }';"
            "document.head.append(style);"
        )
        self.driver.save_screenshot(str(path))

    def fold_sidebar(self) -> None:
        """Makes room."""
        self.see("css selector", "[aria-label='Toggle sidebar']").click()

    def _open(self, address: str) -> None:
        self.leave_frame()
        self.driver.get(address)

    def _remember(self, items: Mapping[str, str]) -> None:
        """Puts settings where the page keeps them, before it looks."""
        self.driver.execute_cdp_cmd(
            "Page.addScriptToEvaluateOnNewDocument",
            {
                "source": "try {"
                + "".join(
                    f"localStorage.getItem({json.dumps(key)}) ?? "
                    f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)});"
                    for key, value in items.items()
                )
                + "} catch { }"  # a sandboxed frame has no storage
            },
        )

    def _until(self, condition: Any, what: str) -> Any:
        try:
            return self._wait.until(condition)
        except TimeoutException:
            body = self.driver.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"not seen: {what!r}; the page shows: {body[:2000]!r}") from None
