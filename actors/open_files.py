"""How many files this process may have open: every socket is one.

Knows the system's limits. Knows nothing of who needs them.
"""


def allow_files(wanted: int) -> int:
    """Raise this process's own limit to `wanted`, as far as the machine lets it. Returns how many there may be.

    A limit that is higher already stays.
    """
    try:
        import resource
    except ImportError:  # no such limit on Windows
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
