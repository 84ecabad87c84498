"""Certificates for 127.0.0.1, made by the openssl command for one test run and of no use to anybody else."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, name: str = "own", *, password: str | None = None) -> tuple[Path, Path]:
    """The files of a certificate that signs itself, and of its private key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command to make a certificate with; on Debian: apt-get install openssl")
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:chat.example"]
    lock = ["-noenc"] if password is None else ["-passout", f"pass:{password}"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command, *names, *lock, *files], check=True, capture_output=True)
    return certificate, key


def client_context(certificate: Path) -> ssl.SSLContext:
    """For a client that trusts this certificate and no other."""
    return ssl.create_default_context(cafile=str(certificate))
