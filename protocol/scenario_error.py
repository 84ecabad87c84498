"""The one error of everything that reads a scenario. Knows nothing of what may be wrong with it."""


class ScenarioError(Exception):
    """A scenario that cannot be read. The message is one sentence for the person who named it."""
