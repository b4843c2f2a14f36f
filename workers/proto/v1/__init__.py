"""Version 1 of the wire format; generated code is checked in."""
