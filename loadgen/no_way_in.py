"""Why a server lets nobody in, in a sentence for the person who typed its address.

Knows what went wrong on the way there, and what that person can do about it. Opens nothing itself.
"""

import ssl
from urllib.parse import urlsplit

_OF_NOBODY_KNOWN = (18, 19, 20, 21)
"""OpenSSL's codes for a certificate that no authority known here vouches for, such as one that signs itself."""


def shown(url: str) -> str:
    """As much of an address as says which server it is."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def nothing_at(url: str, reason: object) -> str:
    """`reason` is what kept a connection from being made, or from being used."""
    if isinstance(reason, ConnectionRefusedError) and urlsplit(url).scheme in ("http", "https"):
        return f"Nothing answers at {shown(url)}: is the server running? Another server: name it as HOST:PORT."
    if isinstance(reason, ConnectionRefusedError):
        return f"Nothing answers at {shown(url)}: is `rota serve` running there? Another server: name it as HOST:PORT."
    if isinstance(reason, ssl.SSLCertVerificationError):
        why = reason.verify_message.rstrip(".")
        return f"The certificate of {shown(url)} is not trusted: {why}.{_trust(reason.verify_code)}"
    what = str(reason) or "the connection was closed"
    hint = perhaps_otherwise(url) if isinstance(reason, ssl.SSLError | ConnectionResetError) else ""
    return f"Cannot reach {shown(url)}: {what}.{hint}"


def perhaps_otherwise(url: str) -> str:
    """What to try where a server has hung up, or talks gibberish: with TLS if it was without, and the other way."""
    parts = urlsplit(url)
    if parts.scheme in ("ws", "http"):
        return f" If it serves under TLS, name it as {parts.scheme}s://{parts.netloc}."
    return f" If it serves without TLS, name it as {parts.scheme[:-1]}://{parts.netloc}."


def about_the_key(status: int, key: str | None) -> str:
    """Beside what a server said with this HTTP status; "" where no key is at fault."""
    if status != 401:
        return ""
    return " (Give a key with --key.)" if key is None else " (The key given with --key is none of its keys.)"


def _trust(code: int) -> str:
    if code not in _OF_NOBODY_KNOWN:
        return ""
    return " If you trust it, put SSL_CERT_FILE=cert.pem before the command, where cert.pem is a file of it."
