"""Settings for all tests."""

from hypothesis import settings

# How long an example takes says nothing on a busy machine; pytest-timeout ends what hangs.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
