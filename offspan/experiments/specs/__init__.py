"""What is asked: small TOML files, checked at the door."""
