"""Reports: results in, figures and tables out; nothing here trains, reads or writes."""
