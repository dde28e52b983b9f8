"""What is minimised: one file per objective, each a pure function."""
