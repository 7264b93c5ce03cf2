"""Pages: a results document as Markdown, HTML, figures and terminal tables, and the words that they share.

What belongs here: pure functions from a document to text. Not here: measuring, reading files, writing files.
"""
