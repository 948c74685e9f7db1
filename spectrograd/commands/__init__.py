"""The commands: one thin module each. What computes is imported inside the functions, so that help is instant."""
