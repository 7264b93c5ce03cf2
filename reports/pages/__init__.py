"""Pages: a document as Markdown, HTML, figures and terminal tables, with their columns, colours and sentences.

What belongs here: pure functions from a document to text. Not here: measuring, reading files, writing files.
"""
