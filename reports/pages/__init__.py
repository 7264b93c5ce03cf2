"""Pages: pure functions from a document to Markdown, HTML, figures and terminal tables."""
