"""The certificate that the server shows: read at the start, so that what is wrong with it is said there.

Knows PEM files and OpenSSL's words for what is wrong with them. Knows no sockets.
"""

import ssl
from pathlib import Path


class TlsError(Exception):
    """A certificate or a private key that cannot be used. The message is one sentence."""


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """For a server: TLS 1.2 or newer. `certificate` holds the chain, the server's own first. Raises TlsError."""
    for path, flag in ((certificate, "--tls-cert"), (key, "--tls-key")):
        try:
            text = path.read_bytes()
        except OSError as error:
            raise TlsError(f"{flag} {path} cannot be read: {error.strerror}.") from None
        what = b"CERTIFICATE-----" if path is certificate else b"PRIVATE KEY-----"
        if b"-----BEGIN " not in text or what not in text:
            kind = "certificate" if path is certificate else "private key"
            raise TlsError(f"{flag} {path} has no {kind} in it; it must be a PEM file, with a line -----BEGIN ….")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password=_nobody_to_ask)
    except _Locked:
        raise TlsError(
            f"The private key {key} is locked with a password, and a server has nobody to ask for it. "
            "Unlock it with: openssl pkey -in KEY -out UNLOCKED"
        ) from None
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"The private key {key} is not that of the certificate {certificate}.") from None
        why = (error.reason or "unreadable").replace("_", " ").lower()
        raise TlsError(f"The certificate {certificate} with the key {key} cannot be used: {why}.") from None
    return context


class _Locked(Exception):
    pass


def _nobody_to_ask() -> str:
    """OpenSSL would else ask at the terminal."""
    raise _Locked
