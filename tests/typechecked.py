"""The checker of annotations while tests run: beartype, with an int where a float is asked, as Python's typing has it (PEP 484)."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
