"""What the argument of `rota simulate` that names policies may be. Knows nothing of what they are for."""

import argparse

from actors.scheduling.policies import POLICIES, PolicyName


def policies(text: str) -> tuple[PolicyName, ...]:
    names = dict.fromkeys(name.strip().replace("-", "_") for name in text.split(","))
    found: list[PolicyName] = []
    for name in names:
        policy = next((each for each in POLICIES if each == name), None)
        if policy is None:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(POLICIES)}")
        found.append(policy)
    return tuple(found)
