"""Pages to read and to print: one self-contained HTML file, no script, nothing fetched."""
