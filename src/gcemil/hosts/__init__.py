"""Nine MIL hosts behind one contract (`host.py`); `table.py` lists them."""
