"""One file per command; each is a thin shell over one function of the library."""
