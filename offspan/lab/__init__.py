"""The page to play with: one self-contained HTML file, its sources in `page/`, and what puts it together."""
