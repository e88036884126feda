"""The terminal of qrole: the only place that reads options and prints."""
