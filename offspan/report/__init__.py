"""Reports: results in, figures, tables and pages out; nothing here trains."""
