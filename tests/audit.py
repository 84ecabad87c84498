"""Whether anything that a fresh clone installs is known to be vulnerable: `make audit`.

Asks OSV by way of pip-audit about every line of `constraints.txt`, and about nothing that is installed here. A service
that cannot be reached is said in one line and fails nothing: tests run without a network too. Knows what was allowed,
and why (`audit_allowed.toml`).
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_SERVICE = "https://api.osv.dev/v1/query"
_TIMEOUT_S = 10
_OUT_OF_REACH = ("ConnectionError", "ConnectTimeout", "ReadTimeout", "ServiceError", "SSLError", "ProxyError")


def audit(requirements: Path, allowed: Mapping[str, str], service: str = _SERVICE) -> tuple[int, list[str]]:
    """The exit code, and what to say. `allowed`: why a vulnerability does not concern us, by any of its names."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(requirements), "--no-deps", "--disable-pip"]
    command += ["--vulnerability-service", "osv", "--osv-url", service, "--timeout", str(_TIMEOUT_S)]
    command += ["--format", "json", "--progress-spinner", "off"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(ended.stdout)
    except json.JSONDecodeError:
        last = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        if any(name in last for name in _OUT_OF_REACH):
            return 0, [f"Not audited: {service} cannot be asked from here."]
        return 1, [f"pip-audit could not read {requirements}: {last}"]
    return _judged(report["dependencies"], allowed)


def _judged(dependencies: list[dict[str, Any]], allowed: Mapping[str, str]) -> tuple[int, list[str]]:
    said, used, bad = [], set(), 0
    for one in dependencies:
        for found in one.get("vulns", []):
            names = {found["id"], *found.get("aliases", [])}
            excused = names & allowed.keys()
            used |= excused
            if excused:
                said.append(f"{one['name']} {one['version']}: {found['id']}, allowed: {allowed[min(excused)]}")
                continue
            bad += 1
            fixed = ", ".join(found.get("fix_versions", [])) or "no version yet"
            said.append(f"{one['name']} {one['version']}: {found['id']}, fixed in {fixed}")
        if "skip_reason" in one:
            bad += 1
            said.append(f"{one['name']} was not audited: {one['skip_reason']}")
    for name in allowed.keys() - used:
        bad += 1
        said.append(f"{name} is allowed and concerns nothing any more: take it out of audit_allowed.toml.")
    if bad:
        said.append(
            "Raise the version in constraints.txt, or say in tests/audit_allowed.toml why it does not concern us."
        )
    else:
        said.append(f"Audited: nothing else is known against the {len(dependencies)} packages of constraints.txt.")
    return int(bad > 0), said


def main() -> None:
    allowed = tomllib.loads((ROOT / "tests" / "audit_allowed.toml").read_text("utf-8"))
    code, said = audit(ROOT / "constraints.txt", allowed)
    print("\n".join(said))
    sys.exit(code)


if __name__ == "__main__":
    main()
