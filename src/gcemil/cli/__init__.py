"""One file per group of commands. Heavy imports happen inside the commands: --help is quick."""
