"""What the script imports from its own directory."""

NAME = "beside"
