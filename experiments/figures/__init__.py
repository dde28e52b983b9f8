"""One script per figure: rows in; PDF, PNG, CSV and a LaTeX table out."""
