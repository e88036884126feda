"""Factories that come with qrole; they are entry points of the group `qrole.factories`."""
