"""Tasks: one folder per operator with its definition, reference and kernel templates."""
