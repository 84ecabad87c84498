"""`python -m tests.simulation SEED`: run one seed again and show every message."""

import sys

from tests.simulation import world
from tests.simulation.seeds import small_vocabulary

if __name__ == "__main__":
    world.install()
    world.World(int(sys.argv[1]), small_vocabulary(), trace=print).run()
    print("held")
