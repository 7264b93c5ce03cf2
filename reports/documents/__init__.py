"""The documents: one typed model of each kind, which checks what is read, and what follows from it without words."""
