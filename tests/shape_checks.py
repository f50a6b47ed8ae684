"""The type checker behind the shapes; an int may stand where a float is asked for, as Python allows."""

from beartype import BeartypeConf, beartype

typechecked = beartype(conf=BeartypeConf(is_pep484_tower=True))
