"""`python -m benchmarks`: runs every benchmark and writes its table and JSON."""

from benchmarks.quantize.__main__ import main

if __name__ == "__main__":
    main()
