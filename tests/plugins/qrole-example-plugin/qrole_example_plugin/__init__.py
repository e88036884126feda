"""A third party's package: a factory and an emitter that qrole finds by their entry points."""
