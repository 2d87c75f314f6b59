"""Statements as code: the paper's mathematics in closed form, and its claims, each checked by another route."""
