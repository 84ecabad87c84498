"""What the reader sees: the page at `/`, served as it lies here. No build step, and no Python besides this sentence."""
