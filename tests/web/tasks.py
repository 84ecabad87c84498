"""How long the tasks of a page keep its main thread, from a trace that the browser has written."""

import json

TASKS = ["toplevel"]
"""What to trace (`browser.start_tracing(categories=TASKS)`)."""


def longest_task_ms(trace: bytes) -> float:
    """The most processor time that one task on a page's main thread took.

    The performance API counts the time a task took on the clock, and there other processes have their share.
    """
    events = json.loads(trace)["traceEvents"]
    mains = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks: list[float] = [
        event["tdur"] / 1000
        for event in events
        if "RunTask" in event["name"] and "tdur" in event and (event["pid"], event["tid"]) in mains
    ]
    assert tasks, "The browser traced no tasks."
    return max(tasks)
