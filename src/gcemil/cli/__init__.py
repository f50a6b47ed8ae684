"""One file per verb; `main.py` lists them. Heavy imports happen inside the verbs, so that --help answers at once."""
