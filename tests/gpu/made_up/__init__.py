"""Parts of the check that go wrong, for its own tests."""
