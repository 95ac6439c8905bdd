"""The documentation site: hooks of mkdocs, and the texts and scripts of its diagrams."""
