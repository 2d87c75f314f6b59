"""Experiments: from a question to a result on disk. The only folder that touches disk and clock."""
