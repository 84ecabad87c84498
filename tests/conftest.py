"""What holds for every test: how hypothesis searches."""

from hypothesis import HealthCheck, settings

# The machine may be busy: how long an example takes says nothing about whether it is right.
settings.register_profile("rota", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("rota")
