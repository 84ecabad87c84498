"""The audit of dependencies, opposite a service that says what a test tells it to, and one that is not there."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.audit import audit

Service = Callable[[dict[str, Any] | int], str]
KNOWN = {
    "vulns": [
        {
            "id": "GHSA-aaaa-bbbb-cccc",
            "aliases": ["CVE-2030-1"],
            "summary": "Bad.",
            "modified": "2030-01-01T00:00:00Z",
            "published": "2030-01-01T00:00:00Z",
            "affected": [
                {
                    "package": {"name": "left-pad", "ecosystem": "PyPI"},
                    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "1.3"}]}],
                    "versions": ["1.2"],
                }
            ],
        }
    ]
}


@pytest.fixture
def service() -> Iterator[Service]:
    """Starts a service that gives one answer to everything."""
    servers: list[HTTPServer] = []

    def start(answer: dict[str, Any] | int) -> str:
        class Answers(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(answer if isinstance(answer, int) else 200)
                self.end_headers()
                self.wfile.write(json.dumps({} if isinstance(answer, int) else answer).encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/v1/query"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def pinned(tmp_path: Path) -> Path:
    path = tmp_path / "constraints.txt"
    path.write_text("left-pad==1.2\n")
    return path


def test_what_nothing_is_known_against_passes(service: Service, pinned: Path) -> None:
    code, said = audit(pinned, {}, service({}))
    assert (code, said) == (0, ["Audited: nothing else is known against the 1 packages of constraints.txt."])


def test_a_known_vulnerability_fails_and_names_the_version_without_it(service: Service, pinned: Path) -> None:
    code, said = audit(pinned, {}, service(KNOWN))
    assert code == 1
    assert said[0] == "left-pad 1.2: CVE-2030-1, fixed in 1.3"


@pytest.mark.parametrize("name", ["GHSA-aaaa-bbbb-cccc", "CVE-2030-1"])
def test_one_that_is_allowed_is_said_with_its_reason(service: Service, pinned: Path, name: str) -> None:
    code, said = audit(pinned, {name: "we never pad left"}, service(KNOWN))
    assert code == 0
    assert said[0].endswith("allowed: we never pad left")


def test_what_is_allowed_for_nothing_fails(service: Service, pinned: Path) -> None:
    code, said = audit(pinned, {"CVE-2029-9": "once"}, service({}))
    assert code == 1
    assert said[0].startswith("CVE-2029-9 is allowed and concerns nothing any more")


@pytest.mark.parametrize("status", [403, 503])
def test_a_service_that_does_not_answer_fails_nothing(service: Service, pinned: Path, status: int) -> None:
    code, said = audit(pinned, {}, service(status))
    assert (code, len(said)) == (0, 1)
    assert said[0].startswith("Not audited: ")


def test_a_service_that_is_not_there_fails_nothing(pinned: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{probe.getsockname()[1]}/v1/query"
        assert audit(pinned, {}, nobody) == (0, [f"Not audited: {nobody} cannot be asked from here."])


def test_a_file_that_cannot_be_audited_fails(service: Service, pinned: Path) -> None:
    pinned.write_text("left-pad>=1\n")
    code, said = audit(pinned, {}, service({}))
    assert code == 1
    assert "could not read" in said[0]
