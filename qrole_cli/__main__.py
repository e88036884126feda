"""`python -m qrole_cli`, for launchers such as torchrun that start modules."""

from qrole_cli.main import run

if __name__ == "__main__":
    run()
