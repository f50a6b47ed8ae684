"""One file per command; `main.py` lists them. Heavy imports happen inside the commands, so that --help answers at once."""
