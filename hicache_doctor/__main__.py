"""``python -m hicache_doctor``."""

from hicache_doctor.cli import main

if __name__ == "__main__":
    main()
