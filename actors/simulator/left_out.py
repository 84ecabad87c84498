"""What of a scenario's people a simulation leaves out: there is no socket that somebody could close or read slowly.

Knows what a person may do. Knows nothing of how a run goes.
"""

from protocol.people import people
from protocol.scenario import Scenario


def left_out(scenario: Scenario) -> list[str]:
    """One sentence, or none where the simulation leaves nothing out."""
    everybody = people(scenario)
    counts = {
        "leave in the middle of an answer": sum(
            person.leaves_after_s is not None or person.leaves_after_chunks is not None for person in everybody
        ),
        "read slowly": sum(person.reads_chunks_per_s is not None for person in everybody),
        "reconnect between questions": sum(person.reconnects for person in everybody),
    }
    said = [f"{number:,} who {what}" for what, number in counts.items() if number]
    if not said:
        return []
    listed = " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))
    return [
        f"Left out of the simulation, which knows no sockets: of {len(everybody):,} people there are {listed}; "
        "here all stay, and read at once. rota replay plays them."
    ]
