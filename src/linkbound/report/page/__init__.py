"""The page's parts: markup, plots and one module for each group of sections."""
