"""What is done: each kind of experiment trains its spec, and makes one labelled result of it."""
