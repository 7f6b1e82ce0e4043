"""How verdicts are told: on the terminal, and as properties of a test in JUnit files."""
